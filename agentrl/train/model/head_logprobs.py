"""Log-probabilities of chosen tokens from hidden states, without a float32 [tokens, vocab] tensor.

The language-model head is by far the widest layer. Here its output exists once, in the model's own
dtype, while the softmax runs through a small float32 buffer that stays in the processor's cache.
With `float32_logits` that buffer is filled with logits that were never rounded to the model's
dtype (`agentrl.lm_head`); probabilities that are kept, and their products, have that dtype still.
Where the loss is known beforehand (`gradient_of`) not even that: a chunk's logits become its share
of the gradient at once. Where it is not and one copy is too much, the head runs in chunks and the
backward pass computes each chunk again.

Legend: `A` trained tokens, `V` vocabulary, `E` width of the hidden states.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from agentrl.lm_head import float32_product, is_narrow

MAX_KEPT_BYTES = 1 << 29
"""Probabilities of one micro-batch are kept for the backward pass up to this size (512 MiB)."""

FORMED_BYTES = 1 << 26
"""Size of a chunk of logits whose gradient is formed in the forward pass (64 MiB). Logits that are
no larger are kept."""

GradientOf = Callable[[slice, Tensor, Tensor], Tensor]
"""`(which tokens, their log-probabilities, their entropies)`, each [part], to the gradient [part]
of the loss in these log-probabilities."""

_CPU_BLOCK = 16
_GPU_BLOCK_BYTES = 1 << 27
"""Of each of the two float32 buffers on a GPU (128 MiB): beside that, a launch costs nothing."""


def head_log_probs(
    hidden_AE: Tensor,
    weight_VE: Tensor,
    target_A: Tensor,
    *,
    bias_V: Tensor | None = None,
    temperature_A: Tensor | None = None,
    max_kept_bytes: int = MAX_KEPT_BYTES,
    gradient_of: GradientOf | None = None,
    float32_logits: bool = False,
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden @ weight.T / temperature) at the targets, and the entropy.

    Args:
        hidden_AE: [A, E] hidden states that predict the targets.
        weight_VE: [V, E] of the head.
        target_A: [A] int64 token ids.
        bias_V: [V] of the head.
        temperature_A: [A]; None is 1 everywhere.
        max_kept_bytes: above this size the backward pass computes the head again.
        gradient_of: the loss, where it is a sum over tokens that each look at their own
            log-probability. Gradients are then formed in the forward pass. If the backward pass
            brings another gradient (but for one common factor) they are computed again, so a
            wrong guess costs time and nothing else.
        float32_logits: do not round logits to the dtype of the weight before the softmax.

    Returns:
        `(log_probs_A, entropy_A)` in float32 (float64 for a float64 model), in nats. The gradient
        flows through the first only.
    """
    logits_bytes = len(target_A) * weight_VE.shape[0] * weight_VE.element_size()
    if not torch.is_grad_enabled() or logits_bytes <= FORMED_BYTES:
        gradient_of = None
    float32_logits = float32_logits and is_narrow(weight_VE)
    return _HeadLogProbs.apply(
        hidden_AE,
        weight_VE,
        bias_V,
        target_A,
        temperature_A,
        max_kept_bytes,
        gradient_of,
        float32_logits,
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
        gradient_of: GradientOf | None,
        float32_logits: bool,
    ) -> tuple[Tensor, Tensor]:
        kind = torch.promote_types(hidden.dtype, torch.float32)
        log_probs = torch.empty(len(target), dtype=kind, device=hidden.device)
        entropy = torch.empty_like(log_probs)
        known = log_probs if float32_logits else None
        needs_gradient = any(ctx.needs_input_grad)
        forms = gradient_of is not None and needs_gradient
        row_bytes = weight.shape[0] * weight.element_size() * (2 if float32_logits else 1)
        ctx.float32_logits = float32_logits
        ctx.chunks = _even_chunks(
            len(target), (FORMED_BYTES if forms else max_kept_bytes) // row_bytes
        )
        ctx.kept = ctx.sums = None
        sums = _Sums(ctx, hidden, weight, bias) if forms else None
        guess = torch.empty_like(log_probs) if forms else None
        for start, end in ctx.chunks:
            part = slice(start, end)
            at = None if temperature is None else temperature[part]
            probs = _probabilities(
                hidden[part],
                weight,
                bias,
                target[part],
                at,
                log_probs[part],
                entropy[part],
                float32_logits=float32_logits,
            )
            if gradient_of is not None and sums is not None and guess is not None:
                guess[part] = gradient_of(part, log_probs[part], entropy[part])
                sums.add(part, probs, target[part], _over(guess[part], at), known)
            elif needs_gradient and len(ctx.chunks) == 1:
                ctx.kept = probs
            del probs
        ctx.sums = sums
        ctx.save_for_backward(hidden, weight, bias, target, temperature, guess, known)
        ctx.mark_non_differentiable(entropy)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, temperature, guess, known = ctx.saved_tensors
        sums: _Sums | None = ctx.sums
        factor = None if guess is None else _common_factor(grads[0], guess)
        if sums is not None and factor is not None:
            ctx.sums = None
            return (*sums.result(factor), None, None, None, None, None)
        sums = _Sums(ctx, hidden, weight, bias)
        for start, end in ctx.chunks:
            part = slice(start, end)
            at = None if temperature is None else temperature[part]
            probs, ctx.kept = ctx.kept, None
            if probs is None:
                probs = _probabilities(
                    hidden[part],
                    weight,
                    bias,
                    target[part],
                    at,
                    float32_logits=ctx.float32_logits,
                )
            sums.add(part, probs, target[part], _over(grads[0][part], at), known)
            del probs
        return (*sums.result(1.0), None, None, None, None, None)


class _Sums:
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
        self, part: slice, probs: Tensor, target: Tensor, grad: Tensor, known: Tensor | None
    ) -> None:
        """One chunk; `probs` is used up. `known` are the log-probabilities of all tokens."""
        log_probs = None if known is None else known[part]
        grad_logits = _logit_gradient(probs, target, grad, log_probs)
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


def _over(grad: Tensor, temperature: Tensor | None) -> Tensor:
    return grad if temperature is None else grad / temperature


def _common_factor(grad: Tensor, guess: Tensor) -> float | None:
    """The number that makes `guess` into `grad`; None if there is none to rounding."""
    if torch.equal(grad, guess):
        return 1.0
    size = float(guess.abs().max()) if len(guess) else 0.0
    if not 0.0 < size < float("inf"):
        return None
    at = int(guess.abs().argmax())
    factor = float(grad[at]) / float(guess[at])
    rounding = 32 * torch.finfo(grad.dtype).eps
    close = (grad - guess * factor).abs() <= rounding * (guess * factor).abs()
    return factor if bool(close.all()) else None


def _even_chunks(total: int, largest: int) -> list[tuple[int, int]]:
    number = -(-total // max(1, largest))
    bounds = [total * index // number for index in range(number + 1)] if number else [0]
    return list(pairwise(bounds))


def _probabilities(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    temperature: Tensor | None,
    log_probs: Tensor | None = None,
    entropy: Tensor | None = None,
    *,
    float32_logits: bool,
) -> Tensor:
    """[A, V] softmax in the dtype of the weights; fills `log_probs` and `entropy` on the way."""
    rest: Tensor | None = None
    if float32_logits:
        logits, rest = float32_product(hidden, weight)
    else:
        logits = torch.nn.functional.linear(hidden, weight, bias)
    kept = logits if logits.dtype == weight.dtype else torch.empty_like(logits, dtype=weight.dtype)
    rows, vocabulary = logits.shape
    kind = torch.promote_types(logits.dtype, torch.float32)
    block = min(rows, _rows_of_block(logits.device, vocabulary * kind.itemsize))
    scratch = torch.empty(2, block, vocabulary, dtype=kind, device=logits.device)
    for start in range(0, rows, block):
        part = slice(start, min(start + block, rows))
        raw, probs = scratch[:, : part.stop - start]
        raw.copy_(logits[part])
        if rest is not None:
            raw += rest[part]
        if float32_logits and bias is not None:
            raw += bias
        if temperature is not None:
            raw /= temperature[part, None]
        torch.softmax(raw, dim=-1, out=probs)
        kept[part] = probs
        if log_probs is None or entropy is None:
            continue
        # The largest probability is 1 / sum exp(raw - max): no pass of its own for the log-sum-exp.
        log_sum = raw.amax(dim=1) - probs.amax(dim=1).log()
        log_probs[part] = raw.gather(1, target[part, None])[:, 0] - log_sum
        # H = log_sum - sum p raw. An impossible token has p = 0, but 0 * -inf is a NaN.
        raw.clamp_(min=torch.finfo(kind).min).mul_(probs)
        entropy[part] = (log_sum - raw.sum(dim=1)).clamp_(min=0.0)
    return kept


def _rows_of_block(device: torch.device, row_bytes: int) -> int:
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
