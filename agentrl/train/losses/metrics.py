"""Metrics over tokens: summed on the device, copied to the CPU in one go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentrl.errors import TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.train.losses.contract import MAX_LOG_RATIO

_MARKS = ("mean", "sum", "max", "min")


class TokenMetrics:
    """Collects named numbers of one micro-batch. Nothing is copied before `into`."""

    def __init__(self, weights_R: Tensor | None = None) -> None:
        """Begin empty.

        Args:
            weights_R: [R] how many tokens each one stands for, where rows are a sample of others:
                means count that many, and sums, which are of what is trained, are left out.
        """
        self._given: list[tuple[str, str, Tensor, Tensor]] = []
        self._names: list[tuple[str, str]] = []
        self._numbers: list[Tensor] = []
        self._weights_R = None if weights_R is None else weights_R.to(torch.float64)

    def add(
        self, metrics: Mapping[str, Tensor | float], mask_R: Tensor, *, prefix: str = ""
    ) -> None:
        """Take values by marked name; see `TokenLosses.metrics`.

        Raises:
            TrainError: an unknown mark, or a tensor that is neither [R] nor a scalar.
        """
        for marked, value in metrics.items():
            name, _, mark = marked.partition("@")
            mark = mark or "mean"
            if mark == "sum" and self._weights_R is not None:
                continue
            if mark not in _MARKS:
                valid = ", ".join(f"@{known}" for known in _MARKS)
                raise TrainError(f"metric {marked!r}: unknown reduction {mark!r}; valid: {valid}")
            value = torch.as_tensor(value, device=mask_R.device).detach()
            if value.ndim and value.shape != mask_R.shape:
                raise TrainError(
                    f"metric {prefix + name!r} has shape {list(value.shape)}, expected one value "
                    f"for each of the {len(mask_R)} response positions, or a single one"
                )
            self._given.append((prefix + name, mark, value, mask_R))

    def reduce(self) -> None:
        """Sum every metric into one number on the device, and free the tokens."""
        given, self._given = self._given, []
        counts = {id(mask_R): self._count(mask_R) for *_, mask_R in given}
        groups: dict[tuple[str, int], list[tuple[str, str, Tensor, Tensor]]] = {}
        for part in given:
            name, mark, value, mask_R = part
            if value.ndim:
                groups.setdefault((mark, id(mask_R)), []).append(part)
                continue
            count, total = counts[id(mask_R)], value.to(torch.float64)
            # A number of the micro-batch counts although nothing in it is trained, its mean not.
            numbers = (total * count, count) if mark == "mean" else (total, count + 1)
            self._keep([(name, mark)], torch.stack(numbers))
        for (mark, mask), parts in groups.items():
            totals = self._totals(mark, [value for *_, value, _ in parts], parts[0][3])
            names = [(name, mark) for name, *_ in parts]
            self._keep(names, torch.stack([totals, counts[mask].expand_as(totals)], dim=1))

    def _keep(self, names: Sequence[tuple[str, str]], numbers: Tensor) -> None:
        self._names.extend(names)
        self._numbers.append(numbers.flatten())

    def _totals(self, mark: str, values: Sequence[Tensor], mask_R: Tensor) -> Tensor:
        """[metrics] of one kind, by as many launches as one of them would take."""
        # A fill and no indexing: the number of trained tokens stays on the device.
        fill = {"max": -torch.inf, "min": torch.inf}.get(mark, 0.0)
        kept = torch.stack([value.to(torch.float64) for value in values])
        kept = torch.where(mask_R, kept, fill)
        if self._weights_R is not None and mark == "mean":
            kept = torch.where(mask_R, kept * self._weights_R, 0.0)
        if mark in ("mean", "sum"):
            return kept.sum(1)
        if not kept.shape[1]:
            # A padding micro-batch has no position at all.
            return kept.new_full((len(values),), fill)
        return kept.amax(1) if mark == "max" else kept.amin(1)

    def _count(self, mask_R: Tensor) -> Tensor:
        """Scalar: how many tokens the trained ones stand for."""
        of_R = mask_R if self._weights_R is None else torch.where(mask_R, self._weights_R, 0.0)
        return of_R.sum(dtype=torch.float64)

    def into(self, bag: MetricBag) -> None:
        """Add everything to a bag; values over no token at all are left out."""
        self.reduce()
        if not self._numbers:
            return
        numbers = torch.cat(self._numbers).tolist()
        for (name, mark), total, count in zip(
            self._names, numbers[::2], numbers[1::2], strict=True
        ):
            if mark == "mean":
                bag.mean(name, total, count=count)
            elif count:
                getattr(bag, mark)(name, total)


def entropy_metrics(entropy_R: Tensor) -> Mapping[str, Tensor]:
    """Entropy of the policy at trained tokens, in nats at the training temperature."""
    return {"entropy": entropy_R}


def sampler_metrics(log_probs_R: Tensor, rollout_log_probs_R: Tensor) -> Mapping[str, Tensor]:
    """Measure the difference between trainer and sampler at the sampled tokens (FORMULAS F25).

    Args:
        log_probs_R: [R] of the policy before its first update in the step.
        rollout_log_probs_R: [R] the sampler's.
    """
    difference = (log_probs_R - rollout_log_probs_R).detach().double()
    ratio = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    gap = difference.abs()
    return {
        "sampling/sampling_logp_difference/mean": gap,
        "sampling/sampling_logp_difference/max@max": gap,
        "rollout_corr/kl": -difference,
        "rollout_corr/ratio_mean": ratio,
        "rollout_corr/ratio_min@min": ratio,
        "rollout_corr/ratio_max@max": ratio,
        "rollout_corr/ratio_square_mean": ratio.square(),
    }


def used_ratio(
    log_probs_R: Tensor, rollout_log_probs_R: Tensor, weight_R: Tensor | None
) -> Mapping[str, Tensor]:
    """Importance ratios as the loss uses them: after a correction, raw without one (F25).

    Args:
        log_probs_R: [R] of the policy before its first update in the step.
        rollout_log_probs_R: [R] the sampler's.
        weight_R: [R] from `sampler_weights`; None without a correction.
    """
    if weight_R is None:
        difference = (log_probs_R - rollout_log_probs_R).detach().double()
        weight_R = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return {
        f"sampling/importance_sampling_ratio/{name}@{name}": weight_R
        for name in ("mean", "min", "max")
    }


def derive_metrics(bag: MetricBag) -> None:
    """Add what is a quotient of means, once all micro-batches and ranks are merged (F25).

        rollout_corr/ess   (mean w)^2 / mean w^2, the share of tokens that weigh as much as all
        rollout_corr/chi2  mean w^2 - 1

    with w = exp(lp_old - lp_rollout), not truncated.
    """
    known = bag.result()
    mean, square = (known.get(f"rollout_corr/ratio_{name}") for name in ("mean", "square_mean"))
    if mean is None or square is None:
        return
    bag.mean("rollout_corr/ess", mean * mean / square)
    bag.mean("rollout_corr/chi2", square - 1.0)
