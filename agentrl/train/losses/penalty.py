"""Terms added to the policy loss by token: distance to a reference, and entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.errors import TrainError, choices
from agentrl.train.losses.contract import MAX_LOG_RATIO, LossSums

ESTIMATORS = ("k1", "k2", "k3", "k3+")
"""Estimators that `kl_loss` knows."""


def kl_loss(
    log_probs_R: Tensor,
    *,
    ref_log_probs_R: Tensor,
    weights_R: Tensor,
    mask_R: Tensor,
    kl_coef: float,
    estimator: str,
) -> LossSums:
    """Penalty for leaving the reference policy (FORMULAS F11, C.6, C.11).

        d   = lp - lp_ref
        k1  = d
        k2  = d^2 / 2
        k3  = exp(-d) - 1 + d       d clamped to +-20 before exp, so no gradient beyond it
        k3+ = k2 + sg(k3 - k2)      the value of k3 with the gradient of k2

    http://joschu.net/blog/kl-approx.html; k3+ is verl's. As a value k3 is unbiased and never
    negative, k2 is biased; as a loss on samples of the policy it is the other way round: the
    gradient of k2 is that of KL(policy | reference) and the gradient of k3 that of the reverse
    divergence. The gradient of k1 is zero on average: it belongs into the reward, and a config
    that has it here is warned of. Neither the policy ratio nor the importance weight multiplies the
    penalty, so on tokens of an older policy all estimate from its samples.

    `value_R` is k3, whichever estimator is in the loss.

    Args:
        log_probs_R: [R] under the current policy, with gradient.
        ref_log_probs_R: [R] under the reference, at the same temperature; no gradient.
        weights_R: [R] from `token_weight`, those of the policy loss.
        mask_R: [R] bool, True where a token is trained.
        kl_coef: weight of the penalty.
        estimator: which one is in the loss.

    Raises:
        TrainError: an unknown estimator.
    """
    zero = log_probs_R.new_zeros(())
    difference = torch.where(mask_R, log_probs_R - ref_log_probs_R, zero)
    clamped = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    k3 = torch.exp(-clamped) - 1.0 + clamped
    k2 = 0.5 * difference.square()
    if estimator == "k1":
        token_loss = difference
    elif estimator == "k2":
        token_loss = k2
    elif estimator == "k3":
        token_loss = k3
    elif estimator == "k3+":
        token_loss = k2 + (k3 - k2).detach()
    else:
        raise TrainError(f"algorithm.kl_estimator: {choices(estimator, list(ESTIMATORS))}")
    share_R = torch.where(mask_R, weights_R, zero) * token_loss
    return LossSums(
        loss=kl_coef * share_R.sum(), value_R=k3.detach(), share_R=kl_coef * share_R.detach()
    )


def entropy_loss(
    entropy_R: Tensor, *, weights_R: Tensor, mask_R: Tensor, entropy_coef: float
) -> LossSums:
    """Minus a bonus for the entropy of the policy (FORMULAS F1, F25).

        loss = -entropy_coef sum_t w_t H_t      H = -sum_v p_v log p_v over the whole vocabulary

    https://arxiv.org/abs/1707.06347, equation 9. The weights are those of the policy loss, so the
    bonus has its mean and its global denominator. Neither the ratio nor the importance weight
    multiplies it. H is that of the policy at hand at the temperature of the rollouts: the
    distribution whose log-probabilities are trained, without `top_p`.

    Args:
        entropy_R: [R] in nats, with gradient; anything where nothing is trained.
        weights_R: [R] from `token_weight`, those of the policy loss.
        mask_R: [R] bool, True where a token is trained.
        entropy_coef: weight of the bonus.
    """
    zero = entropy_R.new_zeros(())
    kept_R = torch.where(mask_R, entropy_R, zero)
    share_R = -entropy_coef * torch.where(mask_R, weights_R, zero) * kept_R
    return LossSums(loss=share_R.sum(), value_R=kept_R.detach(), share_R=share_R.detach())
