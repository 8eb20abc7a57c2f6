"""Heads of a reward model that is an ensemble by itself: how they differ from each other.

Each begins with weights of its own, and counts each pair so often as its own bootstrap sample has
it. With one forward pass for all heads none has an order of its own. Such a sample has a pair a
binomial number of times, about Poisson of mean 1, and a Poisson number needs no other pair: it is a
function of the seed of the head and the id of the pair. So it is the same on every rank, in every
epoch and after a resume, however a step is divided (Oza and Russell 2001, "Online bagging and
boosting").
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from agentrl.config.fit import FitConfig

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.fit.data.fit_data import FitData

ENSEMBLE_HEAD_STD = 0.01
"""Deviation of the heads of an ensemble, which would all begin with the same scores of 0."""


def draw_heads(weight_OE: Tensor, config: FitConfig) -> None:
    """Begin a fresh head, whose weights are 0, with drawn ones; the same on every rank.

    Head number k of several is drawn from `run.seed` + k, as the head of member k of an ensemble.

    Args:
        weight_OE: of the head, changed in place; left alone where it is not 0.
        config: says the seed and the deviation.
    """
    import torch

    objective = config.objective
    assert objective.kind == "rm"
    deviation = objective.head_std or (ENSEMBLE_HEAD_STD if objective.heads > 1 else 0.0)
    if not deviation or bool(weight_OE.any()):
        return
    outputs = len(weight_OE) // objective.heads
    for number in range(objective.heads):
        generator = torch.Generator().manual_seed(config.run.seed + number)
        drawn = torch.randn((outputs, weight_OE.shape[1]), generator=generator)
        with torch.no_grad():
            weight_OE[number * outputs : (number + 1) * outputs].copy_(deviation * drawn)


def with_head_weights(data: FitData, config: FitConfig) -> FitData:
    """The data that is trained on, with weights for the heads of `objective.ensemble_mode: heads`.

    Args:
        data: examples without such weights.
        config: says the heads, and the seed of the first.
    """
    objective = config.objective
    if objective.kind != "rm" or objective.heads == 1 or not objective.bootstrap:
        return data
    seeds = range(config.run.seed, config.run.seed + objective.heads)
    examples = tuple(
        replace(each, head_weights=tuple(bootstrap_weight(seed, each.id) for seed in seeds))
        for each in data.examples
    )
    return replace(data, examples=examples)


def bootstrap_weight(seed: int, name: str) -> int:
    """Times that a head counts a pair: Poisson of mean 1, always the same for one seed and id.

    Args:
        seed: of the head.
        name: id of the pair.
    """
    digest = hashlib.blake2b(f"{seed}/bootstrap/{name}".encode(), digest_size=8).digest()
    uniform = int.from_bytes(digest) / 2**64
    count, term = 0, math.exp(-1.0)
    below = term
    while uniform >= below and term > 0.0:
        count += 1
        term /= count
        below += term
    return count
