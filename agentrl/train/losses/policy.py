"""The built-in policy losses: one function of a token's ratio and advantage each.

All of them look at trained tokens (`final_response_mask`). What they are divided by counts sampled
tokens, before any filter (FORMULAS C.1), and is in the weights of the batch.

With rho the ratio of a token, A its advantage, lo and hi the clip bounds and sg() without gradient,
every loss has the gradient of plain REINFORCE, -A grad lp, where rho is 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.config.schema import AlgorithmSection
from agentrl.train.losses.contract import MAX_LOG_RATIO, LossInputs, TokenLosses
from agentrl.train.losses.registry import policy_loss

TRAINED = ("final_response_mask",)
"""Mask of all losses here."""
SAPO_TEMPERATURE = (1.0, 1.05)
"""tau of `sapo` for advantages above zero, and for the others."""


def ratio_of(log_ratio_R: Tensor) -> Tensor:
    """exp(clip(log ratio, -20, 20)) (FORMULAS F3, C.6); no gradient beyond the clamp."""
    return log_ratio_R.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@policy_loss("ppo_clip", masks=TRAINED, reads=("dual_clip",))
def ppo_clip(inputs: LossInputs) -> TokenLosses:
    """Clipped policy loss with asymmetric bounds and, if set, dual clip (FORMULAS F3-F5).

        rho = exp(clip(lp - lp_old, -20, 20))
        l   = -min(rho A, clip(rho, 1 - lo, 1 + hi) A)
        l   = -max(that min, c A)                          for A < 0, with c = dual_clip

    https://arxiv.org/abs/1707.06347, equation 7; asymmetric bounds from DAPO,
    https://arxiv.org/abs/2503.14476, equation 10; dual clip from
    https://arxiv.org/abs/1912.09729, equation 5.
    """
    return _clipped(ratio_of(inputs.log_ratio()), inputs)


@policy_loss("gspo", masks=TRAINED, whole_rollouts=True, reads=("dual_clip",), rollout_ratio=True)
def gspo(inputs: LossInputs) -> TokenLosses:
    """The clipped loss with one ratio for a whole rollout (FORMULAS F6).

        s_i = exp(mean over the rollout's trained tokens of lp - lp_old)
        l_t = -min(s A, clip(s, 1 - lo, 1 + hi) A) w_t

    with w_t the weight of a sampler correction, 1 without one, which the framework multiplies. Two
    forms of s:

        direct   s = s_i                            where all tokens of a rollout have one A
        token    s = sg(s_i) exp(lp - sg(lp))       where A varies inside a rollout

    https://arxiv.org/abs/2507.18071, equation 5, and the form of document 004, 4.4.3: through the
    mean every token moves all terms of its rollout, so with weights w_t each token has the gradient
    s A mean(w) and not s A w_t. Without weights, or with equal ones, the token form (equation 14,
    GSPO-token) has the same gradient; where A varies, only it is a policy gradient. The log of s is
    clamped like that of any ratio.
    """
    own = inputs.log_ratio()
    if inputs.algorithm.one_advantage:
        log_ratio = inputs.sequence_mean(own)
    else:
        log_ratio = inputs.sequence_mean(own.detach()) + (own - own.detach())
    return _clipped(ratio_of(inputs.trained(log_ratio)), inputs)


@policy_loss("cispo", masks=TRAINED, reads=())
def cispo(inputs: LossInputs) -> TokenLosses:
    """Clipped importance weights on REINFORCE: no token loses its gradient (FORMULAS F17).

        l = -sg(clip(rho, 1 - lo, 1 + hi)) A lp

    https://arxiv.org/abs/2506.13585, equations 4 and 5.
    """
    low, high = _bounds(inputs.algorithm)
    ratio = ratio_of(inputs.log_ratio()).detach()
    weight = ratio.clamp(low, high)
    return TokenLosses(
        loss_R=-weight * inputs.advantages_R * inputs.trained(inputs.log_probs_R),
        metrics=_clip_metrics(ratio, ratio < low, ratio > high),
    )


@policy_loss(
    "tis_reinforce",
    masks=TRAINED,
    whole_rollouts=lambda algorithm: algorithm.importance_level == "sequence",
    correction="tis",
    reads=("importance_level",),
)
def tis_reinforce(inputs: LossInputs) -> TokenLosses:
    """REINFORCE with a truncated importance weight (FORMULAS F7, C.7).

        tau = min(exp(lp - lp_old), 1 + hi)     of a token, or of its rollout's mean log ratio
        l   = -sg(tau) A lp

    The document it is from (000) also multiplies by min(exp(lp_old - lp_rollout), c): that is the
    correction `tis`, which this loss brings along where the config names none. There is no lower
    bound. lp_old is the policy before the step: with the sampler's numbers in its place both ratios
    are one, and its cap with them, so a config with `old_log_probs: rollout` is refused.
    """
    _, high = _bounds(inputs.algorithm)
    log_ratio = inputs.log_ratio().detach()
    if inputs.algorithm.importance_level == "sequence":
        log_ratio = inputs.trained(inputs.sequence_mean(log_ratio))
    ratio = ratio_of(log_ratio)
    return TokenLosses(
        loss_R=-ratio.clamp(max=high) * inputs.advantages_R * inputs.trained(inputs.log_probs_R),
        metrics=_clip_metrics(ratio, torch.zeros_like(inputs.mask_R), ratio > high),
    )


@policy_loss("sapo", masks=TRAINED, reads=())
def sapo(inputs: LossInputs) -> TokenLosses:
    """A smooth gate instead of the clip (FORMULAS F18).

        l = -(4 / tau) sigmoid(tau (rho - 1)) A     tau 1 for A > 0, 1.05 otherwise

    https://arxiv.org/abs/2511.20347. The clip bounds have no effect.
    """
    ratio = ratio_of(inputs.log_ratio())
    advantages = inputs.advantages_R
    above, below = (torch.full_like(advantages, tau) for tau in SAPO_TEMPERATURE)
    tau = torch.where(advantages > 0, above, below)
    gate = torch.sigmoid(tau * (ratio - 1.0)) * 4.0 / tau
    return TokenLosses(loss_R=-gate * advantages, metrics=_ratio_metrics(ratio))


def _clipped(ratio: Tensor, inputs: LossInputs) -> TokenLosses:
    low, high = _bounds(inputs.algorithm)
    advantages = inputs.advantages_R
    gain = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    metrics = _clip_metrics(
        ratio, (ratio < low) & (advantages < 0), (ratio > high) & (advantages > 0)
    )
    limit = inputs.algorithm.dual_clip
    if limit is not None:
        bounded = torch.maximum(gain, limit * advantages)
        metrics["clip_ratio/dual_mean"] = (advantages < 0) & (bounded > gain)
        gain = torch.where(advantages < 0, bounded, gain)
    return TokenLosses(loss_R=-gain, metrics=metrics)


def _bounds(algorithm: AlgorithmSection) -> tuple[float, float]:
    """1 - lo and 1 + hi."""
    assert algorithm.eps_clip_low is not None
    assert algorithm.eps_clip_high is not None
    return 1.0 - algorithm.eps_clip_low, 1.0 + algorithm.eps_clip_high


def _ratio_metrics(ratio: Tensor) -> dict[str, Tensor | float]:
    return {"train/ratio_mean": ratio, "train/ratio_max@max": ratio}


def _clip_metrics(ratio: Tensor, low: Tensor, high: Tensor) -> dict[str, Tensor | float]:
    """Names of FORMULAS A: the share of tokens that a bound holds back, by side."""
    return {
        "clip_ratio/low_mean": low,
        "clip_ratio/high_mean": high,
        "clip_ratio/region_mean": low | high,
        **_ratio_metrics(ratio),
    }
