"""The loss of a critic, and metrics that show whether it has learned anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.batch.records import PackedBatch, RowNumbers
from agentrl.metrics.bag import MetricBag


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLoss:
    """The loss of a critic over one micro-batch."""

    loss: Tensor
    """Scalar with gradient: sum over trained tokens of weight times token loss."""
    metrics: MetricBag
    """Sums and counts over the trained tokens."""


def value_loss(
    values_R: Tensor,
    *,
    old_values_R: Tensor,
    returns_R: Tensor,
    weights_R: Tensor,
    mask_R: Tensor,
    clip: float | None,
) -> ValueLoss:
    """Clipped value loss (FORMULAS F19), weighted as the policy loss is.

        V_c = V_old + clip(V - V_old, -eps, eps)
        l   = 0.5 max((V - G)^2, (V_c - G)^2)

    The value loss of https://arxiv.org/abs/2006.05990, C2, from the PPO code of OpenAI Baselines; a
    token whose value has moved further than eps towards its target has no gradient left.

    Args:
        values_R: [R] V of the critic at hand, with gradient.
        old_values_R: [R] of the critic before the step; no gradient.
        returns_R: [R] G, what the values should have been.
        weights_R: [R] from `token_weight`.
        mask_R: [R] bool, True where a token is trained.
        clip: eps; None leaves out the second term.
    """
    zero = values_R.new_zeros(())
    values = torch.where(mask_R, values_R, zero)
    returns = torch.where(mask_R, returns_R, zero)
    token_loss = (values - returns).square()
    clipped = torch.zeros_like(mask_R)
    if clip is not None:
        old = torch.where(mask_R, old_values_R, zero)
        moved = values - old
        near = (old + moved.clamp(-clip, clip) - returns).square()
        # Within eps V_c is V but for its last bit, which clips nothing.
        clipped = mask_R & (moved.abs() > clip) & (near > token_loss)
        token_loss = torch.maximum(token_loss, near)
    loss = 0.5 * (torch.where(mask_R, weights_R, zero) * token_loss).sum()
    metrics = MetricBag()
    metrics.mean("critic/vf_clipfrac", int(clipped.sum()), count=int(mask_R.sum()))
    return ValueLoss(loss=loss, metrics=metrics)


def value_metrics(
    updates: Sequence[PackedBatch], values: RowNumbers, returns: RowNumbers
) -> MetricBag:
    """Measure how well the critic before the step predicted the returns of trained tokens.

    `critic/vf_explained_var` is 1 - Var(G - V) / Var(G): 1 for a perfect critic, 0 for one that
    says the same everywhere; left out where all returns are equal.

    Args:
        updates: of the whole step, not of one rank; the first pass over the rows is read.
        values: V by row, one number per response position.
        returns: G by row.
    """
    found: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for micro in (m for update in updates if update.epoch == 0 for m in update.micro_batches):
        for index, key in enumerate(micro.rows):
            mask = micro.mask_R[micro.row_R == index]
            found.append((np.asarray(values[key])[mask], np.asarray(returns[key])[mask]))
    metrics = MetricBag()
    if not sum(len(value) for value, _ in found):
        return metrics
    value = np.concatenate([v for v, _ in found]).astype(np.float64)
    target = np.concatenate([g for _, g in found]).astype(np.float64)
    for name, numbers in (("values", value), ("returns", target)):
        metrics.mean(f"critic/{name}/mean", float(numbers.sum()), count=len(numbers))
        metrics.min(f"critic/{name}/min", float(numbers.min()))
        metrics.max(f"critic/{name}/max", float(numbers.max()))
    spread = float(target.var())
    if spread > 0.0:
        explained = 1.0 - float((target - value).var()) / spread
        metrics.mean("critic/vf_explained_var", explained)
    return metrics
