"""Parts of distillation in the loss of a micro-batch: advantages of tokens, or a term beside.

    top_k 0    A_t = coef (log q_t - sg(log p_t)) [+ A_t of the reward]
    top_k K    loss + coef sum_t weight_t KL_t

q is the teacher and p the policy at hand, at the token that was sampled. The first has the gradient
of the reverse KL,

    grad KL(p | q) = E_p[(log p - log q) grad log p]

credited to the token itself: log q - log p of later tokens is not summed up (a discount of 0), as
in https://thinkingmachines.ai/blog/on-policy-distillation. It goes through the policy loss, so
ratio, bounds and the correction for the sampler act as on any advantage. p is the policy at hand
and not the sampler: so the advantage is exactly 0 where teacher and policy agree, whatever engine
sampled, and every update of a step has the gradient of its own policy. What a token's choice does
to the KL of later tokens is left out, also in the second form, which has no ratio: it looks at all
tokens, sampled or not, on the states that were sampled (https://arxiv.org/abs/2306.13649, with the
reverse KL).

Both divide as the policy loss does: the weights of tokens hold the global denominators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentrl.batch.tensors import TensorBatch
from agentrl.config.distill import DistillSection
from agentrl.errors import TrainError
from agentrl.train.distill.divergence import reverse_kl
from agentrl.train.distill.records import TeacherTokens
from agentrl.train.losses.contract import LossSums
from agentrl.train.model.logprobs import TokenLogProbs


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillTerms:
    """The part of a teacher in the loss of a micro-batch."""

    tensors: TensorBatch
    """The micro-batch with the advantages that the policy loss is given."""
    term: LossSums | None
    """Added to the loss; None where all of it is in the advantages."""
    metrics: Mapping[str, Tensor]
    """[R] By name, without gradient."""


def distill_terms(
    section: DistillSection,
    out: TokenLogProbs,
    tensors: TensorBatch,
    teacher: TeacherTokens | None,
) -> DistillTerms:
    """Advantages and loss that a teacher brings.

    Args:
        section: which form, and its weight.
        out: of the policy at hand, with gradient.
        tensors: the micro-batch.
        teacher: its numbers.

    Raises:
        TrainError: there are none, or not for the form that is asked for.
    """
    if teacher is None:
        raise TrainError(
            "algorithm.distill is set, but there are no log-probabilities of a teacher; give the "
            "trainer one (agentrl.train.distill), or remove algorithm.distill"
        )
    mask_R, zero = tensors.mask_R, out.log_probs_R.new_zeros(())
    rewards_R = torch.where(mask_R, tensors.advantages_R, zero)
    if not section.with_reward:
        rewards_R = torch.zeros_like(rewards_R)
    if section.top_k == 0:
        apart_R = torch.where(mask_R, out.log_probs_R.detach() - teacher.sampled_R, zero)
        advantages_R = rewards_R - section.coef * apart_R
        return DistillTerms(
            tensors=replace(tensors, advantages_R=advantages_R),
            term=None,
            metrics={"distill/reverse_kl": apart_R},
        )
    if out.top_log_probs_RK is None or out.top_log_probs_RK.shape != teacher.ids_RK.shape:
        got = None if out.top_log_probs_RK is None else list(out.top_log_probs_RK.shape)
        raise TrainError(
            f"log-probabilities of the policy at the teacher's likeliest tokens have shape {got}, "
            f"expected {list(teacher.ids_RK.shape)}"
        )
    found = reverse_kl(out.top_log_probs_RK, teacher.log_probs_RK, mask_R=mask_R)
    share_R = section.coef * torch.where(mask_R, tensors.weights_R, zero) * found.kl_R
    return DistillTerms(
        tensors=replace(tensors, advantages_R=rewards_R),
        term=LossSums(loss=share_R.sum(), value_R=found.kl_R.detach(), share_R=share_R.detach()),
        metrics={
            "distill/reverse_kl": found.kl_R.detach(),
            "distill/tail_mass": found.tail_R,
            "distill/teacher_tail_mass": found.teacher_tail_R,
        },
    )
