"""Weights for the difference between the sampler and the policy before the step (FORMULAS F16).

w = exp(clip(lp_old - lp_rollout, -20, 20)), without gradient. It multiplies the policy term and no
penalty. What a correction takes out stays in the denominators: they are counted before any filter,
so dropping a part of the tokens does not make the others louder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.config.presets import IS_BOUNDS, Bounds
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import TrainError, choices
from agentrl.train.losses.contract import LossInputs, LossSpec
from agentrl.train.losses.policy import ratio_of

KINDS = ("none", "raw", "tis", "icepop", "seq-mask-tis")
"""What `sampler_weights` knows; `raw` is the weight of the decoupled objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Which weights there are and how they are bounded."""

    kind: str
    """One of `KINDS`."""
    bounds: Bounds
    """Lowest and highest; `none` and `raw` have no use for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerWeights:
    """The weights of one micro-batch."""

    weight_R: Tensor
    """[R] Factor of each token's loss; 1 where nothing is trained."""
    metrics: Mapping[str, Tensor | float]
    """Metrics, as in `TokenLosses.metrics`."""


def correction_of(algorithm: AlgorithmSection, spec: LossSpec) -> Correction:
    """The correction that a config names, or else the one its loss brings along.

    None is needed while the ratio is taken to the sampler itself.
    """
    kind = algorithm.is_correction_type
    if kind == "none" and algorithm.old_log_probs != "rollout":
        kind = spec.correction
        if kind == "none" and algorithm.old_log_probs == "decoupled":
            kind = "raw"
    bounds = algorithm.is_correction_threshold or IS_BOUNDS.get(kind, (0.0, float("inf")))
    return Correction(kind=kind, bounds=bounds)


@torch.no_grad()
def sampler_weights(
    correction: Correction, old_log_probs_R: Tensor, inputs: LossInputs
) -> SamplerWeights | None:
    """Weights of a micro-batch, None if there is nothing to correct.

        raw           w                      decoupled PPO, https://arxiv.org/abs/2505.24298
        tis           clip(w, lo, hi)        https://fengyao.notion.site/off-policy-rl
        icepop        w if lo <= w <= hi, else 0
                                             https://ringtech.notion.site/icepop
        seq-mask-tis  clip(w, lo, hi) if lo <= g <= hi, else 0, with
                      g = exp(mean of log w over the rollout's trained tokens)

    Peers apply the raw w inside the rollouts that `seq-mask-tis` keeps; here it is the clamped one
    (FORMULAS C.8).

    Args:
        correction: which one.
        old_log_probs_R: [R] of the policy before the first update of the step.
        inputs: the micro-batch.

    Raises:
        TrainError: an unknown kind, or rollouts that may be in parts where a whole one is needed.
    """
    if correction.kind not in KINDS:
        raise TrainError(f"sampler correction: {choices(correction.kind, list(KINDS))}")
    if correction.kind == "none":
        return None
    low, high = correction.bounds
    log_weight = inputs.trained(old_log_probs_R - inputs.rollout_log_probs_R)
    raw = ratio_of(log_weight)
    metrics: dict[str, Tensor | float] = {}
    weight = raw
    if correction.kind in ("tis", "seq-mask-tis"):
        weight = raw.clamp(low, high)
        metrics["is_correction/clamped_mean"] = weight != raw
    keep = None
    if correction.kind == "icepop":
        keep = (raw >= low) & (raw <= high)
    elif correction.kind == "seq-mask-tis":
        whole = ratio_of(inputs.sequence_mean(log_weight))
        keep = (whole >= low) & (whole <= high)
        metrics["is_correction/sequence_ratio_mean"] = whole
    if keep is not None:
        weight = torch.where(keep, weight, 0.0)
        metrics["is_correction/dropped_mean"] = ~keep
    weight = torch.where(inputs.mask_R, weight, 1.0)
    return SamplerWeights(weight_R=weight, metrics=metrics)
