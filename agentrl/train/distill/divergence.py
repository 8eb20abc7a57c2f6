"""The reverse KL over a teacher's likeliest tokens and one bin for all others.

    KL = sum_k p_k (log p_k - log q_k) + p_tail (log p_tail - log q_tail)

with p the policy, q the teacher, k the K likeliest tokens of q, and p_tail = 1 - sum_k p_k. It is
the KL of the two distributions once all other tokens count as one, so never negative, at most the
KL over the whole vocabulary, and equal to it where the ratio p / q is the same for all of them.
The gradient is that of this formula,

    dKL / d log p_k = p_k ((log p_k - log q_k) - (log p_tail - log q_tail))

written out instead of left to autograd: so it is zero to the bit where both distributions are
equal, and has no 1 / p_tail.

A token that the teacher cannot sample, which has -inf there, belongs to the bin of all others: so K
may be more than the tokens that the teacher has left. One that the policy cannot sample has p_k = 0
and gives 0 (p log p goes to 0 with p).

Legend: `_R` response positions, `_K` likeliest tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

TAIL_FLOOR = 1e-6
"""A tail of less than this counts as this much, for policy and teacher alike: in float32 one minus
a sum of probabilities knows no smaller one. So |log p_tail - log q_tail| is at most 13.8 nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The reverse KL by token."""

    kl_R: Tensor
    """[R] In nats, with gradient; 0 where nothing is trained."""
    tail_R: Tensor
    """[R] Probability of the policy outside the teacher's likeliest tokens, without gradient."""
    teacher_tail_R: Tensor
    """[R] The same of the teacher."""


def tail_log_prob(log_probs_RK: Tensor) -> Tensor:
    """[R] log(1 - sum_k exp(log_probs)), at least log(`TAIL_FLOOR`); without gradient.

    log(1 - e^x) as log(-expm1(x)) above -log 2 and log1p(-e^x) below keeps its digits at both ends
    (Maechler 2012, https://cran.r-project.org/package=Rmpfr, log1mexp).

    Example:
        >>> tail_log_prob(torch.tensor([[0.5, 0.25]], dtype=torch.float64).log()).exp()
        tensor([0.2500], dtype=torch.float64)
    """
    inside_R = torch.logsumexp(log_probs_RK.detach(), dim=-1)
    # A sum above 1 is rounding: the largest value below 0 keeps the logarithms finite.
    inside_R = inside_R.clamp(max=-torch.finfo(inside_R.dtype).tiny)
    near_R = torch.log(-torch.expm1(inside_R))
    far_R = torch.log1p(-torch.exp(inside_R))
    tail_R = torch.where(inside_R > -math.log(2.0), near_R, far_R)
    return tail_R.clamp(min=math.log(TAIL_FLOOR))


def reverse_kl(log_probs_RK: Tensor, teacher_RK: Tensor, *, mask_R: Tensor) -> Divergence:
    """KL(policy | teacher) by token, over K tokens and the tail.

    Args:
        log_probs_RK: [R, K] of the policy at the teacher's likeliest tokens, with gradient;
            anything where the mask is False.
        teacher_RK: [R, K] of the teacher at the same tokens; likewise.
        mask_R: [R] bool, True where a token is trained.
    """
    zero = log_probs_RK.new_zeros(())
    never = log_probs_RK.new_full((), -math.inf)
    known_RK = mask_R[:, None] & (teacher_RK != never)
    both_RK = known_RK & (log_probs_RK.detach() != never)
    own_RK = torch.where(both_RK, log_probs_RK, zero)
    theirs_RK = torch.where(both_RK, teacher_RK, zero)
    fixed_RK = own_RK.detach()
    tail_R = tail_log_prob(torch.where(both_RK, fixed_RK, never))
    their_tail_R = tail_log_prob(torch.where(known_RK, teacher_RK, never))
    apart_RK, tail_apart_R = fixed_RK - theirs_RK, tail_R - their_tail_R
    probs_RK = torch.where(both_RK, fixed_RK.exp(), zero)
    value_R = (probs_RK * apart_RK).sum(-1) + tail_R.exp() * tail_apart_R
    slope_RK = probs_RK * (apart_RK - tail_apart_R[:, None])
    # The second term is 0 and has the gradient.
    kl_R = value_R + (slope_RK * (own_RK - fixed_RK)).sum(-1)
    return Divergence(
        kl_R=torch.where(mask_R, kl_R, zero),
        tail_R=torch.where(mask_R, tail_R.exp(), zero),
        teacher_tail_R=torch.where(mask_R, their_tail_R.exp(), zero),
    )
