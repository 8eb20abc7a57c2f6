"""Log-probabilities of chosen tokens from hidden states, without a float32 [tokens, vocab] tensor.

The language-model head is by far the widest layer. Here its output exists once, in the model's own
dtype, while the softmax runs through a small float32 buffer that stays in the processor's cache.
Where even one copy is too much, the head runs in chunks and the backward pass computes each chunk
again.

Legend: `A` trained tokens, `V` vocabulary, `E` width of the hidden states.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

MAX_KEPT_BYTES = 1 << 29
"""Probabilities of one micro-batch are kept for the backward pass up to this size (512 MiB)."""

_CPU_BLOCK = 16
_GPU_BLOCK = 1024


def head_log_probs(
    hidden_AE: Tensor,
    weight_VE: Tensor,
    target_A: Tensor,
    *,
    bias_V: Tensor | None = None,
    temperature_A: Tensor | None = None,
    max_kept_bytes: int = MAX_KEPT_BYTES,
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden @ weight.T / temperature) at the targets, and the entropy.

    Args:
        hidden_AE: [A, E] hidden states that predict the targets.
        weight_VE: [V, E] of the head.
        target_A: [A] int64 token ids.
        bias_V: [V] of the head.
        temperature_A: [A]; None is 1 everywhere.
        max_kept_bytes: above this size the backward pass computes the head again.

    Returns:
        `(log_probs_A, entropy_A)` in float32 (float64 for a float64 model), in nats. The gradient
        flows through the first only.
    """
    return _HeadLogProbs.apply(
        hidden_AE, weight_VE, bias_V, target_A, temperature_A, max_kept_bytes
    )


class _HeadLogProbs(torch.autograd.Function):
    """d log p[y] / d logits = (onehot(y) - p) / temperature, so only p has to be kept."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        temperature: Tensor | None,
        max_kept_bytes: int,
    ) -> tuple[Tensor, Tensor]:
        kind = torch.promote_types(hidden.dtype, torch.float32)
        log_probs = torch.empty(len(target), dtype=kind, device=hidden.device)
        entropy = torch.empty_like(log_probs)
        row_bytes = weight.shape[0] * weight.element_size()
        chunk = max(1, max_kept_bytes // row_bytes)
        ctx.chunks = _even_chunks(len(target), chunk)
        kept = None
        for start, end in ctx.chunks:
            part = slice(start, end)
            kept = _probabilities(
                hidden[part],
                weight,
                bias,
                target[part],
                None if temperature is None else temperature[part],
                log_probs[part],
                entropy[part],
            )
        ctx.kept = kept if len(ctx.chunks) == 1 and any(ctx.needs_input_grad) else None
        ctx.save_for_backward(hidden, weight, bias, target, temperature)
        ctx.mark_non_differentiable(entropy)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, temperature = ctx.saved_tensors
        grad = grads[0] if temperature is None else grads[0] / temperature
        grad_hidden = torch.empty_like(hidden)
        grad_weight: Tensor | None = None
        grad_bias: Tensor | None = None
        if not ctx.chunks:
            # Padding: ranks in step expect a gradient of every weight, zero as it is.
            grad_weight = torch.zeros_like(weight)
            grad_bias = None if bias is None else torch.zeros_like(bias)
        for start, end in ctx.chunks:
            part = slice(start, end)
            probs = ctx.kept
            if probs is None:
                at = None if temperature is None else temperature[part]
                probs = _probabilities(hidden[part], weight, bias, target[part], at)
            ctx.kept = None
            grad_logits = _logit_gradient(probs, target[part], grad[part])
            torch.mm(grad_logits, weight, out=grad_hidden[part])
            if ctx.needs_input_grad[1]:
                more = grad_logits.t() @ hidden[part]
                grad_weight = _add(grad_weight, more, exact=len(ctx.chunks) > 1)
            if bias is not None and ctx.needs_input_grad[2]:
                grad_bias = _add(grad_bias, grad_logits.sum(0), exact=len(ctx.chunks) > 1)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
        )


def _even_chunks(total: int, largest: int) -> list[tuple[int, int]]:
    number = -(-total // largest)
    bounds = [total * index // number for index in range(number + 1)] if number else [0]
    return list(pairwise(bounds))


def _add(total: Tensor | None, part: Tensor, *, exact: bool) -> Tensor:
    """Sums over chunks are kept in float32; a single chunk is handed through."""
    if total is not None:
        return total.add_(part)
    return part.to(torch.promote_types(part.dtype, torch.float32)) if exact else part


def _probabilities(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    temperature: Tensor | None,
    log_probs: Tensor | None = None,
    entropy: Tensor | None = None,
) -> Tensor:
    """[A, V] softmax in the dtype of the weights; fills `log_probs` and `entropy` on the way."""
    logits = torch.nn.functional.linear(hidden, weight, bias)
    rows, vocabulary = logits.shape
    kind = torch.promote_types(logits.dtype, torch.float32)
    block = min(rows, _CPU_BLOCK if logits.device.type == "cpu" else _GPU_BLOCK)
    scratch = torch.empty(2, block, vocabulary, dtype=kind, device=logits.device)
    for start in range(0, rows, block):
        part = slice(start, min(start + block, rows))
        raw, probs = scratch[:, : part.stop - start]
        raw.copy_(logits[part])
        if temperature is not None:
            raw /= temperature[part, None]
        torch.softmax(raw, dim=-1, out=probs)
        logits[part] = probs
        if log_probs is None or entropy is None:
            continue
        # The largest probability is 1 / sum exp(raw - max): no pass of its own for the log-sum-exp.
        log_sum = raw.amax(dim=1) - probs.amax(dim=1).log()
        log_probs[part] = raw.gather(1, target[part, None])[:, 0] - log_sum
        # H = log_sum - sum p raw. An impossible token has p = 0, but 0 * -inf is a NaN.
        raw.clamp_(min=torch.finfo(kind).min).mul_(probs)
        entropy[part] = (log_sum - raw.sum(dim=1)).clamp_(min=0.0)
    return logits


def _logit_gradient(probs: Tensor, target: Tensor, grad: Tensor) -> Tensor:
    """grad * (onehot(target) - p), written over `probs`."""
    rows = torch.arange(len(target), device=target.device)
    # The difference at the target is formed before rounding: p near 1 would lose it.
    at_target = grad * (1.0 - probs[rows, target].to(grad.dtype))
    probs *= -grad.to(probs.dtype)[:, None]
    probs[rows, target] = at_target.to(probs.dtype)
    return probs
