"""A sample of the rows that no update computes, by which the metrics speak for every token.

Rows of flat groups, and those that a filter left out, have no gradient: computing them would cost
as much as training on them. But the entropy of the policy is that of all that it sampled (document
002: token-weighted over all), and in a collapse the flat groups are most of it. So a few of these
rows are read, without gradient, and stand for all:

    points      n points, equally far apart from a random start, on the line of all N tokens of
                these rows laid end to end; a row is read once for each point that falls on its
                N_i tokens
    weight      N / (n N_i) a token and point, so the weights add up to N
    estimate    sum of weight times value: its expectation over the start is the sum over all N
                tokens, for any n >= 1 (Hansen and Hurwitz 1943, with systematic selection)

Neighbours on the line are rows of one group, so equally far apart also means: over many groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np

from agentrl.batch.denominators import count_masks
from agentrl.batch.records import LossNeeds, MaskCounts
from agentrl.batch.rows import AnyRow
from agentrl.types import Trajectory

READ_SHARE = 0.02
"""Tokens that may be read for metrics alone, as a share of the tokens sampled in the step: reading
one costs less than sampling it did, so this is less than the same share of the time. One row is
always read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UntrainedRollout(Generic[AnyRow]):
    """Rows of one rollout that no update computes."""

    trajectories: tuple[Trajectory, ...]
    """Rows of it with a sampled token."""
    rows: tuple[AnyRow, ...]
    """Those of them that are not computed, checked; without those that age masks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UntrainedSample(Generic[AnyRow]):
    """Rows that are read, and what they stand for."""

    units: tuple[tuple[tuple[AnyRow, ...], float], ...]
    """Rows that stay together, with the weight of each of their tokens; in the order of the
    rollouts."""
    global_tokens: int
    """Tokens of all rows that no update computes."""
    global_sequences: int
    """Rollouts with such a token."""
    counts: Mapping[str, MaskCounts]
    """Counts by mask key, as in `PackedBatch.counts`."""


def choose_untrained(
    rollouts: Sequence[UntrainedRollout[AnyRow]],
    *,
    step_tokens: int,
    micro_batch_tokens: int,
    needs: LossNeeds,
    seed: int,
) -> UntrainedSample[AnyRow] | None:
    """Choose the rows and their weights; None where no token is left.

    Rows that do not fit into a micro-batch stand back for the others. A loss that needs whole
    rollouts gets whole rollouts.

    Args:
        rollouts: in the order of the groups.
        step_tokens: sampled tokens of the step, those of rows that are trained included.
        micro_batch_tokens: budget of one forward pass.
        needs: of the loss.
        seed: decides the start.
    """
    units = [
        unit
        for rollout in rollouts
        for unit in ([rollout.rows] if needs.whole_rollouts else [(r,) for r in rollout.rows])
        if _trained(unit)
    ]
    fitting = [unit for unit in units if _length(unit) <= micro_batch_tokens]
    if not fitting:
        return None
    total = sum(_trained(unit) for unit in units)
    weights = _weights(
        tokens=[_trained(unit) for unit in fitting],
        lengths=[_length(unit) for unit in fitting],
        most=int(READ_SHARE * step_tokens),
        total=total,
        seed=seed,
    )
    return UntrainedSample(
        units=tuple(
            (unit, weight) for unit, weight in zip(fitting, weights, strict=True) if weight
        ),
        global_tokens=total,
        global_sequences=sum(bool(_trained(rollout.rows)) for rollout in rollouts),
        counts=count_masks(
            ((rollout.trajectories, rollout.rows) for rollout in rollouts), keys=needs.mask_keys
        ),
    )


def _weights(
    *, tokens: Sequence[int], lengths: Sequence[int], most: int, total: int, seed: int
) -> list[float]:
    """By unit the weight of each of its tokens, 0 where it is not read; they add up to `total`."""
    here = sum(tokens)
    if sum(lengths) <= most:
        return [total / here] * len(tokens)
    # A unit is drawn in proportion to its tokens.
    mean_length = sum(n * length for n, length in zip(tokens, lengths, strict=True)) / here
    draws = max(1, int(most / mean_length))
    start = float(np.random.default_rng([seed, 1]).random())
    points = (start + np.arange(draws)) * here / draws
    found = np.searchsorted(np.cumsum(tokens), points, side="right")
    hits = Counter(np.minimum(found, len(tokens) - 1).tolist())
    return [hits[index] * total / (draws * own) for index, own in enumerate(tokens)]


def _trained(rows: Sequence[AnyRow]) -> int:
    return sum(row.num_trained for row in rows)


def _length(rows: Sequence[AnyRow]) -> int:
    return sum(row.length for row in rows)
