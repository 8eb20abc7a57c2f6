"""Gradients of the language-model head, formed from its probabilities in the room that these take.

Legend: `A` trained tokens, `V` vocabulary, `E` width of the hidden states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentrl.train.model.more_tokens import MoreGradient

_CPU_BLOCK = 16
_GPU_BLOCK_BYTES = 1 << 27
"""Of each of the two float32 buffers on a GPU (128 MiB): beside that, a launch costs nothing."""


class HeadGradients:
    """Gradients of the inputs, summed over chunks; over several of them in float32."""

    def __init__(self, ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self._hidden, self._weight, self._bias = hidden, weight, bias
        self._wanted = ctx.needs_input_grad
        self._single = len(ctx.chunks) == 1
        self._for_hidden = torch.empty_like(hidden)
        self._for_weight: Tensor | None = None
        self._for_bias: Tensor | None = None
        if not ctx.chunks:
            # Padding: ranks in step expect a gradient of every weight, zero as it is.
            self._for_weight = torch.zeros_like(weight)
            self._for_bias = None if bias is None else torch.zeros_like(bias)

    def add(
        self,
        part: slice,
        probs: Tensor,
        target: Tensor,
        grad: Tensor,
        known: Tensor | None,
        through: Tensor | None,
        more: MoreGradient | None = None,
        slope: Tensor | float = 1.0,
    ) -> None:
        """One chunk; `probs` is used up.

        `known` are the log-probabilities of all tokens, `through` the entropies of all tokens,
        where a gradient flows through them, `more` the gradient in those of other ids, `slope`
        that of the logits in what the head gave.
        """
        log_probs = None if known is None else known[part]
        entropy = None if through is None else through[part]
        here = None if more is None else more.part(part)
        everywhere = grad if here is None else here.added_to(grad)
        if entropy is None:
            grad_logits = _logit_gradient(probs, target, everywhere, log_probs)
        else:
            grad_logits = _entropy_gradient(probs, target, everywhere, log_probs, entropy)
        if here is not None:
            assert log_probs is not None
            here.put(grad_logits, target, grad, log_probs, entropy)
        if isinstance(slope, Tensor) or slope != 1.0:
            grad_logits *= slope
        torch.mm(grad_logits, self._weight, out=self._for_hidden[part])
        if self._wanted[1]:
            self._add_for_weight(grad_logits, self._hidden[part])
        if self._bias is not None and self._wanted[2]:
            self._for_bias = self._plus(self._for_bias, grad_logits.sum(0))

    def _add_for_weight(self, grad_logits: Tensor, hidden: Tensor) -> None:
        total = self._for_weight
        if total is not None and total.dtype == hidden.dtype:
            total.addmm_(grad_logits.t(), hidden)
        else:
            self._for_weight = self._plus(total, grad_logits.t() @ hidden)

    def _plus(self, total: Tensor | None, part: Tensor) -> Tensor:
        if total is not None:
            return total.add_(part)
        return part if self._single else part.to(torch.promote_types(part.dtype, torch.float32))

    def result(self, factor: float) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradients of hidden states, weight and bias, times `factor`."""
        found = (
            (self._for_hidden, self._hidden),
            (self._for_weight, self._weight),
            (self._for_bias, self._bias),
        )
        scaled = [
            None
            if grad is None or of is None
            else (grad if factor == 1.0 else grad.mul_(factor)).to(of.dtype)
            for grad, of in found
        ]
        hidden, weight, bias = scaled
        assert hidden is not None
        return hidden, weight, bias


def rows_of_block(device: torch.device, row_bytes: int) -> int:
    """Tokens whose softmax runs at once: as many as a cache holds, or a kernel is worth."""
    return _CPU_BLOCK if device.type == "cpu" else max(1, _GPU_BLOCK_BYTES // row_bytes)


def _logit_gradient(
    probs: Tensor, target: Tensor, grad: Tensor, log_probs: Tensor | None
) -> Tensor:
    """grad * (onehot(target) - p), written over `probs`; `log_probs` of the targets if exact."""
    rows = torch.arange(len(target), device=target.device)
    # The difference at the target is formed before rounding: p near 1 would lose it.
    if log_probs is None:
        left = 1.0 - probs[rows, target].to(grad.dtype)
    else:
        left = -torch.expm1(log_probs)
    at_target = grad * left
    probs *= -grad.to(probs.dtype)[:, None]
    probs[rows, target] = at_target.to(probs.dtype)
    return probs


def _entropy_gradient(
    probs: Tensor, target: Tensor, grad: Tensor, log_probs: Tensor | None, entropy: Tensor
) -> Tensor:
    """g (onehot(target) - p) - h p (log p + H) with (g, h) = `grad`, written over `probs`."""
    rows = torch.arange(len(target), device=target.device)
    least = torch.finfo(grad.dtype).tiny  # p log p is 0 where p is
    at_target = probs[rows, target].to(grad.dtype)
    left, log_at = 1.0 - at_target, at_target.clamp(min=least).log()
    if log_probs is not None:
        left, log_at = -torch.expm1(log_probs), log_probs
    at_target = grad[0] * left - grad[1] * at_target * (log_at + entropy)
    vocabulary = probs.shape[1]
    block = min(len(rows), rows_of_block(probs.device, vocabulary * grad.element_size()))
    scratch = torch.empty(2, block, vocabulary, dtype=grad.dtype, device=probs.device)
    for start in range(0, len(rows), block):
        part = slice(start, min(start + block, len(rows)))
        exact, slope = scratch[:, : part.stop - start]
        exact.copy_(probs[part])
        torch.clamp(exact, min=least, out=slope).log_().add_(entropy[part, None])
        slope.mul_(grad[1, part, None]).add_(grad[0, part, None]).mul_(exact)
        probs[part] = slope.neg_()
    probs[rows, target] = at_target.to(probs.dtype)
    return probs
