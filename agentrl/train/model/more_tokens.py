"""More tokens of a distribution than the one that was sampled, read off with it by the head.

Legend: `A` trained tokens, `K` more ids at each of them, `V` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.batch.tensors import TopIds


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreTokens:
    """Room for log-probabilities of ids that were named, and of those that are likeliest."""

    ids_AK: Tensor | None
    """[A, K] int64 ids that were named; None names none."""
    log_probs_AK: Tensor
    """[A, K] filled on the way; K is 0 where none were named."""
    top: TopIds | None
    """How many of the likeliest are wanted; None wants none."""
    top_ids_AK: Tensor
    """[A, K] int64 filled on the way, the likeliest first."""
    top_log_probs_AK: Tensor
    """[A, K] filled on the way."""

    @classmethod
    def like(cls, log_probs_A: Tensor, ids_AK: Tensor | None, top: TopIds | None) -> MoreTokens:
        """Room beside the log-probabilities of A tokens."""
        count = len(log_probs_A)
        named = 0 if ids_AK is None else ids_AK.shape[1]
        likeliest = 0 if top is None else top.k
        return cls(
            ids_AK=ids_AK,
            log_probs_AK=log_probs_A.new_empty((count, named)),
            top=top,
            top_ids_AK=torch.empty(
                (count, likeliest), dtype=torch.int64, device=log_probs_A.device
            ),
            top_log_probs_AK=log_probs_A.new_empty((count, likeliest)),
        )

    def part(self, at: slice) -> MoreTokens:
        """The room of some of the tokens: filling it fills this."""
        return MoreTokens(
            ids_AK=None if self.ids_AK is None else self.ids_AK[at],
            log_probs_AK=self.log_probs_AK[at],
            top=self.top,
            top_ids_AK=self.top_ids_AK[at],
            top_log_probs_AK=self.top_log_probs_AK[at],
        )

    def fill(self, at: slice, raw: Tensor, log_sum: Tensor) -> None:
        """Read off the numbers of some tokens.

        Args:
            at: which ones.
            raw: [part, V] logits over temperature.
            log_sum: [part] log of the sum of their exponentials.
        """
        if self.ids_AK is not None:
            self.log_probs_AK[at] = raw.gather(1, self.ids_AK[at]) - log_sum[:, None]
        if self.top is not None:
            best = raw[:, : self.top.below].topk(self.top.k, dim=1)
            self.top_ids_AK[at] = best.indices
            self.top_log_probs_AK[at] = best.values - log_sum[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreGradient:
    """The gradient of a loss in the log-probabilities of ids that were named."""

    ids_AK: Tensor
    """[A, K] int64, at each token different ones, but where it has no gradient in any of them."""
    log_probs_AK: Tensor
    """[A, K]."""
    grad_AK: Tensor
    """[A, K] divided by the temperature."""

    def part(self, at: slice) -> MoreGradient:
        """The part for some of the tokens."""
        return MoreGradient(
            ids_AK=self.ids_AK[at], log_probs_AK=self.log_probs_AK[at], grad_AK=self.grad_AK[at]
        )

    def added_to(self, grad: Tensor) -> Tensor:
        """[A] or [2, A] The gradient in front of -p in all columns: that of the token, and these.

        sum_k g_k d log p_k / d logits = sum_k g_k onehot(k) - (sum_k g_k) p
        """
        total_A = self.grad_AK.sum(1)
        if grad.dim() == 1:
            return grad + total_A
        return torch.stack([grad[0] + total_A, grad[1]])

    def put(
        self,
        grad_logits: Tensor,
        target: Tensor,
        grad: Tensor,
        log_probs: Tensor,
        entropy: Tensor | None,
    ) -> None:
        """Write the columns of the named ids and of the target, each formed before rounding.

        Args:
            grad_logits: [A, V] right in all other columns; written over.
            target: [A] int64 ids of the tokens.
            grad: [A] gradient in their log-probabilities, or [2, A] with that in entropies.
            log_probs: [A] of the tokens.
            entropy: [A]; None where no gradient flows through it.
        """
        own_A, entropy_grad_A = (grad, None) if grad.dim() == 1 else (grad[0], grad[1])
        same_AK = self.ids_AK == target[:, None]
        zero = self.grad_AK.new_zeros(())
        ids = torch.cat([target[:, None], self.ids_AK], dim=1)
        known = torch.cat([log_probs[:, None], self.log_probs_AK], dim=1)
        # The target has one column, whether or not it is named as well.
        here = own_A + torch.where(same_AK, self.grad_AK, zero).sum(1)
        named = self.grad_AK + torch.where(same_AK, own_A[:, None], zero)
        probs = known.exp()
        value = torch.cat([here[:, None], named], dim=1)
        value = value - probs * (own_A + self.grad_AK.sum(1))[:, None]
        if entropy is not None and entropy_grad_A is not None:
            finite = known.clamp(min=torch.finfo(known.dtype).min)
            value = value - entropy_grad_A[:, None] * probs * (finite + entropy[:, None])
        grad_logits.scatter_(1, ids, value.to(grad_logits.dtype))
