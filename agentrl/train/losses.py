"""The losses, as sums. What they are divided by is in the weights already.

Every function masks with `torch.where` before any exp or product, so that whatever stands at masked
positions, NaN included, reaches neither the loss nor its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from agentrl.metrics.bag import MetricBag

MAX_LOG_RATIO = 20.0
"""The log of a ratio is clamped to plus or minus this before exp (FORMULAS F3, C.6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSums:
    """A loss over one micro-batch."""

    loss: Tensor
    """Scalar: sum over trained tokens of weight times token loss."""
    metrics: MetricBag
    """Sums and counts over the trained tokens."""


def policy_loss(
    log_probs_R: Tensor,
    *,
    old_log_probs_R: Tensor,
    advantages_R: Tensor,
    weights_R: Tensor,
    mask_R: Tensor,
    eps_clip_low: float,
    eps_clip_high: float,
    importance_R: Tensor | None = None,
) -> LossSums:
    """Clipped policy loss with asymmetric bounds (FORMULAS F3-F4).

        rho = exp(clip(lp - lp_old, -20, 20))
        l   = -w min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A)

    https://arxiv.org/abs/1707.06347, equation 7; asymmetric bounds from DAPO,
    https://arxiv.org/abs/2503.14476, equation 10. No dual clip. w is 1 unless given.

    Args:
        log_probs_R: [R] under the current policy, with gradient.
        old_log_probs_R: [R] under the policy that the ratio is taken to; no gradient.
        advantages_R: [R].
        weights_R: [R] from `token_weight`.
        mask_R: [R] bool, True where a token is trained.
        eps_clip_low: ratios below 1 - this are clipped.
        eps_clip_high: ratios above 1 + this are clipped.
        importance_R: [R] w from `sampler_importance`; without gradient.
    """
    zero = log_probs_R.new_zeros(())
    log_ratio = torch.where(mask_R, log_probs_R - old_log_probs_R, zero)
    advantages = torch.where(mask_R, advantages_R, zero)
    weights = torch.where(mask_R, weights_R, zero)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped = ratio.clamp(1.0 - eps_clip_low, 1.0 + eps_clip_high)
    token_loss = -torch.minimum(ratio * advantages, clipped * advantages)
    if importance_R is not None:
        token_loss = torch.where(mask_R, importance_R, zero) * token_loss
    loss = (weights * token_loss).sum()
    with torch.no_grad():
        low = mask_R & (ratio < 1.0 - eps_clip_low) & (advantages < 0)
        high = mask_R & (ratio > 1.0 + eps_clip_high) & (advantages > 0)
        metrics = _clip_metrics(ratio, low, high, mask_R)
    return LossSums(loss=loss, metrics=metrics)


@torch.no_grad()
def sampler_importance(
    old_log_probs_R: Tensor, rollout_log_probs_R: Tensor, mask_R: Tensor
) -> Tensor:
    """[R] w = exp(clip(lp_old - lp_rollout, -20, 20)), 1 where nothing is trained (FORMULAS F16).

    The third policy of the decoupled objective of AReaL, https://arxiv.org/abs/2505.24298: the
    ratio that is clipped is taken to the policy before the step, and w corrects for the sampler
    being another one, older or of another program. It multiplies the policy term and no penalty.
    Left out: bounds on w. Truncating or rejecting large ones is a correction of its own (TIS,
    ICEPOP) with bounds of its own; the clamp only keeps exp finite.
    """
    zero = old_log_probs_R.new_zeros(())
    log_ratio = torch.where(mask_R, old_log_probs_R - rollout_log_probs_R, zero)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def kl_loss(
    log_probs_R: Tensor,
    *,
    ref_log_probs_R: Tensor,
    weights_R: Tensor,
    mask_R: Tensor,
    kl_coef: float,
    estimator: Literal["k2", "k3"],
) -> LossSums:
    """Penalty for leaving the reference policy, by token, in the loss (FORMULAS F11, C.6, C.11).

        d  = lp - lp_ref
        k2 = d^2 / 2
        k3 = exp(-d) - 1 + d        d clamped to +-20 before exp, so no gradient beyond it

    http://joschu.net/blog/kl-approx.html. As a value k3 is unbiased and never negative, k2 is
    biased; as a loss on samples of the policy it is the other way round: the gradient of k2 is
    that of KL(policy | reference) and the gradient of k3 that of the reverse divergence. k1 is no
    choice: as a loss its gradient is zero on average. Neither the policy ratio nor the importance
    weight multiplies it, so on tokens of an older policy both estimate from its samples.

    The metric `kl` is the mean of k3 over trained tokens, whichever estimator is in the loss.

    Args:
        log_probs_R: [R] under the current policy, with gradient.
        ref_log_probs_R: [R] under the reference, at the same temperature; no gradient.
        weights_R: [R] from `token_weight`, those of the policy loss.
        mask_R: [R] bool, True where a token is trained.
        kl_coef: weight of the penalty.
        estimator: which one is in the loss.
    """
    zero = log_probs_R.new_zeros(())
    difference = torch.where(mask_R, log_probs_R - ref_log_probs_R, zero)
    clamped = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    k3 = torch.exp(-clamped) - 1.0 + clamped
    token_loss = k3 if estimator == "k3" else 0.5 * difference.square()
    loss = kl_coef * (torch.where(mask_R, weights_R, zero) * token_loss).sum()
    metrics = MetricBag()
    metrics.mean("kl", float(k3.detach().sum(dtype=torch.float64)), count=int(mask_R.sum()))
    return LossSums(loss=loss, metrics=metrics)


def _clip_metrics(ratio: Tensor, low: Tensor, high: Tensor, mask: Tensor) -> MetricBag:
    """Names of FORMULAS A, conditions of F4."""
    metrics = MetricBag()
    zero = ratio.new_zeros(())
    sums = [mask.sum(), low.sum(), high.sum(), torch.where(mask, ratio, zero).sum()]
    count, lows, highs, total = torch.stack([part.to(torch.float64) for part in sums]).tolist()
    metrics.mean("clip_ratio/low_mean", lows, count=count)
    metrics.mean("clip_ratio/high_mean", highs, count=count)
    metrics.mean("clip_ratio/region_mean", lows + highs, count=count)
    metrics.mean("train/ratio_mean", total, count=count)
    if count:
        metrics.max("train/ratio_max", torch.where(mask, ratio, zero).max().item())
    return metrics


@torch.no_grad()
def entropy_metrics(entropy_R: Tensor, mask_R: Tensor) -> MetricBag:
    """Mean entropy of the policy over trained tokens, in nats at the training temperature."""
    metrics = MetricBag()
    total = torch.where(mask_R, entropy_R, entropy_R.new_zeros(())).sum()
    metrics.mean("entropy", total.item(), count=int(mask_R.sum()))
    return metrics


@torch.no_grad()
def sampler_metrics(log_probs_R: Tensor, rollout_log_probs_R: Tensor, mask_R: Tensor) -> MetricBag:
    """How far the trainer's view of the sampled tokens is from the sampler's (FORMULAS F25).

    Args:
        log_probs_R: [R] of the policy before its first update in the step.
        rollout_log_probs_R: [R] the sampler's.
        mask_R: [R] bool.
    """
    metrics = MetricBag()
    difference = (log_probs_R - rollout_log_probs_R)[mask_R].double()
    count = difference.numel()
    if not count:
        return metrics
    ratio = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    parts = [
        difference.abs().sum(),
        difference.abs().max(),
        ratio.sum(),
        ratio.min(),
        ratio.max(),
        -difference.sum(),
    ]
    gap, gap_max, total, lowest, highest, kl = torch.stack(parts).tolist()
    metrics.mean("sampling/sampling_logp_difference/mean", gap, count=count)
    metrics.max("sampling/sampling_logp_difference/max", gap_max)
    metrics.mean("sampling/importance_sampling_ratio/mean", total, count=count)
    metrics.min("sampling/importance_sampling_ratio/min", lowest)
    metrics.max("sampling/importance_sampling_ratio/max", highest)
    metrics.mean("rollout_corr/kl", kl, count=count)
    return metrics
