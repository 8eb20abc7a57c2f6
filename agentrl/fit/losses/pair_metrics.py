"""Metrics of preference pairs: sums and counts that merge over micro-batches and ranks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from agentrl.fit.losses.pair_losses import PairInputs
from agentrl.fit.losses.pair_registry import find_pair_loss
from agentrl.metrics.bag import MetricBag

_LEAST_SPREAD = 1e-12
"""A variance below this share of the mean square is rounding, and has no correlation."""


class WeightedMeans:
    """Weighted sums over the pairs of a micro-batch, copied to the CPU in one go by `into`."""

    def __init__(self, weights_P: Tensor) -> None:
        """Begin empty.

        Args:
            weights_P: [P] how much each pair counts.
        """
        self._weights_P = weights_P.detach().double()
        self._parts: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, name: str, values_P: Tensor, *, over_P: Tensor | None = None) -> None:
        """Take the values of a metric.

        Args:
            name: of the metric.
            values_P: [P] for each pair the value, or the sum over its items.
            over_P: [P] items of each pair; default 1.
        """
        items_P = self._weights_P if over_P is None else self._weights_P * over_P.double()
        total = (self._weights_P * values_P.detach().double()).sum()
        self._parts[name] = (total, items_P.sum())

    def into(self, bag: MetricBag) -> None:
        """Add everything to a bag."""
        if not self._parts:
            return
        flat = torch.stack([number for part in self._parts.values() for number in part]).tolist()
        for name, total, count in zip(self._parts, flat[::2], flat[1::2], strict=True):
            bag.mean(name, total, count=count)


def share_above(gap_P: Tensor) -> Tensor:
    """[P] 1 where a gap is above zero, 1/2 where it is zero, else 0; NaN where it is NaN."""
    return torch.where(gap_P.isnan(), gap_P, (gap_P.sign() + 1.0) / 2.0)


def pair_metrics(inputs: PairInputs, weights_P: Tensor | None = None) -> MetricBag:
    """Metrics of the pairs of a micro-batch.

    The score s of an answer is what its loss compares: the log-ratio l - lr (a token with
    `length_normalized`), or for a loss that needs no reference the mean log-probability l/N. With
    gap = s(w) - s(l), which is h of the loss:

        pref/accuracy                share of pairs with a gap above 0; a tie counts 1/2
        pref/margin                  beta gap
        pref/reward_chosen           beta s(w), and `_rejected`
        pref/logp_chosen             l(w), nats an answer, and `_rejected`
        pref/logp_chosen_per_token   sum of l(w) / sum of N(w), nats a token, and `_rejected_...`
        pref/kl_chosen               l(w) - lr(w), nats an answer; only with a reference
        pref/length_gap ...          means that `derive_pair_metrics` makes `pref/length_corr` of

    Args:
        inputs: as for the loss; a gradient may be in it and is not followed.
        weights_P: [P] how much each pair counts; default 1.
    """
    chosen_P, rejected_P = inputs.log_ratio_chosen_P, inputs.log_ratio_rejected_P
    if not find_pair_loss(inputs.objective.loss).needs_reference:
        chosen_P, rejected_P = inputs.mean_chosen_P, inputs.mean_rejected_P
    beta, gap_P = inputs.objective.beta, (chosen_P - rejected_P).detach().double()
    length_gap_P = (inputs.chosen_tokens_P - inputs.rejected_tokens_P).double()
    means = WeightedMeans(torch.ones_like(inputs.chosen_P) if weights_P is None else weights_P)
    means.add("pref/accuracy", share_above(gap_P))
    means.add("pref/margin", beta * gap_P)
    means.add("pref/reward_chosen", beta * chosen_P)
    means.add("pref/reward_rejected", beta * rejected_P)
    means.add("pref/logp_chosen", inputs.chosen_P)
    means.add("pref/logp_rejected", inputs.rejected_P)
    tokens_P = inputs.chosen_tokens_P
    means.add("pref/logp_chosen_per_token", inputs.chosen_P, over_P=tokens_P)
    tokens_P = inputs.rejected_tokens_P
    means.add("pref/logp_rejected_per_token", inputs.rejected_P, over_P=tokens_P)
    if inputs.ref_chosen_P is not None:
        means.add("pref/kl_chosen", inputs.chosen_P - inputs.ref_chosen_P)
    means.add("pref/length_gap", length_gap_P)
    means.add("pref/length_gap_square", length_gap_P.square())
    means.add("pref/score_gap", gap_P)
    means.add("pref/score_gap_square", gap_P.square())
    means.add("pref/score_length_product", gap_P * length_gap_P)
    bag = MetricBag()
    means.into(bag)
    return bag


def derive_pair_metrics(bag: MetricBag) -> None:
    """Add what is no mean, once all micro-batches and ranks are merged.

        pref/length_corr   correlation of the gap of scores with N(w) - N(l)

    It is left out where either is the same in all pairs.
    """
    known = bag.result()
    names = ("length_gap", "score_gap", "length_gap_square", "score_gap_square")
    parts = [known.get(f"pref/{name}") for name in (*names, "score_length_product")]
    length, score, length_square, score_square, product = (part or 0.0 for part in parts)
    length_spread, score_spread = length_square - length**2, score_square - score**2
    varied = (
        length_spread > _LEAST_SPREAD * length_square
        and score_spread > _LEAST_SPREAD * score_square
    )
    if varied:
        raw = (product - length * score) / math.sqrt(length_spread * score_spread)
        bag.mean("pref/length_corr", max(-1.0, min(1.0, raw)))
