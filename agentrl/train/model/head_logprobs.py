"""Log-probabilities of chosen tokens from hidden states, without a float32 [tokens, vocab] tensor.

The language-model head is by far the widest layer. Here its output exists once, in the model's own
dtype, while the softmax runs through a small float32 buffer that stays in the processor's cache.
With `float32_logits` that buffer is filled with logits that were never rounded to the model's
dtype (`agentrl.models.lm_head`); probabilities that are kept, and their products, have it still.
Where the loss is known beforehand (`gradient_of`) not even that: a chunk's logits become its share
of the gradient at once. Where it is not and one copy is too much, the head runs in chunks and the
backward pass computes each chunk again.

Legend: `A` trained tokens, `V` vocabulary, `E` width of the hidden states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from agentrl.batch.tensors import TopIds
from agentrl.models.lm_head import float32_product, is_narrow
from agentrl.models.logit_map import LogitMap
from agentrl.train.model.head_gradients import HeadGradients, rows_of_block
from agentrl.train.model.more_tokens import MoreGradient, MoreTokens

MAX_KEPT_BYTES = 1 << 29
"""Probabilities of one micro-batch are kept for the backward pass up to this size (512 MiB)."""

FORMED_BYTES = 1 << 26
"""Size of a chunk of logits whose gradient is formed in the forward pass (64 MiB). Logits that are
no larger are kept."""

_PLAIN = LogitMap()

GradientOf = Callable[[slice, Tensor, Tensor], Tensor]
"""`(which tokens, their log-probabilities, their entropies)`, each [part], to the gradient [part]
of the loss in these log-probabilities; with `entropy_gradient` to [2, part], where the second row
is the gradient in these entropies."""


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
    entropy_gradient: bool = False,
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
            log-probability and entropy. Gradients are then formed in the forward pass. If the
            backward pass brings another gradient (but for one common factor) they are computed
            again, so a wrong guess costs time and nothing else.
        float32_logits: do not round logits to the dtype of the weight before the softmax.
        entropy_gradient: let the gradient flow through the entropy, too. It is that of the whole
            distribution, at the temperature, and costs a logarithm of the kept probabilities.

    Returns:
        `(log_probs_A, entropy_A)` in float32 (float64 for a float64 model), in nats. The gradient
        flows through the second only where that is asked for.
    """
    found = head_numbers(
        hidden_AE,
        weight_VE,
        target_A,
        bias_V=bias_V,
        temperature_A=temperature_A,
        max_kept_bytes=max_kept_bytes,
        gradient_of=gradient_of,
        float32_logits=float32_logits,
        entropy_gradient=entropy_gradient,
    )
    return found.log_probs_A, found.entropy_A


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNumbers:
    """Numbers of the distributions that the head gives, in nats."""

    log_probs_A: Tensor
    """[A] Of the targets."""
    entropy_A: Tensor
    """[A] Entropy; with a gradient where that was asked for."""
    more_AK: Tensor
    """[A, K] Of the ids that were named, with gradient; K is 0 without any."""
    top_ids_AK: Tensor
    """[A, K] int64 likeliest ids, the likeliest first; K is 0 where they were not asked for."""
    top_log_probs_AK: Tensor
    """[A, K] Log-probabilities of these, without gradient."""


def head_numbers(
    hidden_AE: Tensor,
    weight_VE: Tensor,
    target_A: Tensor,
    *,
    bias_V: Tensor | None = None,
    temperature_A: Tensor | None = None,
    max_kept_bytes: int = MAX_KEPT_BYTES,
    gradient_of: GradientOf | None = None,
    float32_logits: bool = False,
    entropy_gradient: bool = False,
    more_AK: Tensor | None = None,
    top: TopIds | None = None,
    logit_map: LogitMap = _PLAIN,
) -> HeadNumbers:
    """As `head_log_probs`, with log-probabilities of more tokens from the same pass.

    Args:
        hidden_AE: likewise.
        weight_VE: likewise.
        target_A: likewise.
        bias_V: likewise.
        temperature_A: likewise.
        max_kept_bytes: likewise.
        gradient_of: likewise; does not go with `more_AK`.
        float32_logits: likewise.
        entropy_gradient: likewise.
        more_AK: [A, K] int64 ids whose log-probabilities are wanted as well, with gradient; at
            each token different ones, unless its gradient will be 0.
        top: likeliest tokens that are wanted, without gradient.
        logit_map: of the model, beside its linear head.
    """
    assert gradient_of is None or more_AK is None
    logits_bytes = len(target_A) * weight_VE.shape[0] * weight_VE.element_size()
    if not torch.is_grad_enabled() or logits_bytes <= FORMED_BYTES:
        gradient_of = None
    float32_logits = float32_logits and is_narrow(weight_VE)
    log_probs, entropy, more, top_ids, top_log_probs = _HeadLogProbs.apply(
        logit_map.into_head(hidden_AE),
        weight_VE,
        bias_V,
        target_A,
        temperature_A,
        max_kept_bytes,
        gradient_of,
        float32_logits,
        entropy_gradient,
        more_AK,
        top,
        logit_map,
    )
    return HeadNumbers(
        log_probs_A=log_probs,
        entropy_A=entropy,
        more_AK=more,
        top_ids_AK=top_ids,
        top_log_probs_AK=top_log_probs,
    )


class _HeadLogProbs(torch.autograd.Function):
    """Only p has to be kept for the backward pass.

    d log p[y] / d logits = (onehot(y) - p) / temperature      for the target and for named ids
    d H / d logits        = -p (log p + H) / temperature

    Where logits are capped, their slope is kept beside p.
    """

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
        entropy_gradient: bool,
        more_ids: Tensor | None,
        top: TopIds | None,
        logit_map: LogitMap,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        kind = torch.promote_types(hidden.dtype, torch.float32)
        log_probs = torch.empty(len(target), dtype=kind, device=hidden.device)
        entropy = torch.empty_like(log_probs)
        more = MoreTokens.like(log_probs, more_ids, top)
        known = log_probs if float32_logits or more_ids is not None else None
        through = entropy if entropy_gradient else None
        needs_gradient = any(ctx.needs_input_grad)
        forms = gradient_of is not None and needs_gradient
        buffers = 1 + float32_logits + (logit_map.cap is not None)
        row_bytes = weight.shape[0] * weight.element_size() * buffers
        ctx.float32_logits, ctx.logit_map = float32_logits, logit_map
        ctx.chunks = _even_chunks(
            len(target), (FORMED_BYTES if forms else max_kept_bytes) // row_bytes
        )
        ctx.kept = ctx.sums = None
        sums = HeadGradients(ctx, hidden, weight, bias) if forms else None
        guess = _like(log_probs, entropy_gradient) if forms else None
        for start, end in ctx.chunks:
            part = slice(start, end)
            at = None if temperature is None else temperature[part]
            probs, slope = _probabilities(
                hidden[part],
                weight,
                bias,
                target[part],
                at,
                log_probs[part],
                entropy[part],
                more.part(part),
                float32_logits=float32_logits,
                logit_map=logit_map,
                with_slope=needs_gradient,
            )
            if gradient_of is not None and sums is not None and guess is not None:
                guess[..., part] = gradient_of(part, log_probs[part], entropy[part])
                over = _over(guess[..., part], at)
                sums.add(part, probs, target[part], over, known, through, slope=slope)
            elif needs_gradient and len(ctx.chunks) == 1:
                ctx.kept = probs, slope
            del probs, slope
        ctx.sums = sums
        ctx.save_for_backward(
            hidden,
            weight,
            bias,
            target,
            temperature,
            guess,
            known,
            through,
            more_ids,
            more.log_probs_AK,
        )
        fixed = [more.top_ids_AK, more.top_log_probs_AK]
        fixed += [] if entropy_gradient else [entropy]
        fixed += [more.log_probs_AK] if more_ids is None else []
        ctx.mark_non_differentiable(*fixed)
        return log_probs, entropy, more.log_probs_AK, more.top_ids_AK, more.top_log_probs_AK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, temperature, guess, known, through, more_ids, more_known = (
            ctx.saved_tensors
        )
        grad = grads[0] if through is None else torch.stack(grads[:2])
        more = None
        if more_ids is not None:
            over = grads[2] if temperature is None else grads[2] / temperature[:, None]
            more = MoreGradient(ids_AK=more_ids, log_probs_AK=more_known, grad_AK=over)
        sums: HeadGradients | None = ctx.sums
        factor = None if guess is None else _common_factor(grad, guess)
        if sums is not None and factor is not None:
            ctx.sums = None
            return (*sums.result(factor), *(None,) * 9)
        sums = HeadGradients(ctx, hidden, weight, bias)
        for start, end in ctx.chunks:
            part = slice(start, end)
            at = None if temperature is None else temperature[part]
            kept, ctx.kept = ctx.kept, None
            if kept is None:
                kept = _probabilities(
                    hidden[part],
                    weight,
                    bias,
                    target[part],
                    at,
                    float32_logits=ctx.float32_logits,
                    logit_map=ctx.logit_map,
                )
            probs, slope = kept
            over = _over(grad[..., part], at)
            sums.add(part, probs, target[part], over, known, through, more, slope)
            del kept, probs, slope
        return (*sums.result(1.0), *(None,) * 9)


def _like(log_probs: Tensor, entropy_gradient: bool) -> Tensor:
    """Room for a gradient in log-probabilities, and in entropies where one flows through them."""
    return log_probs.new_empty((2, len(log_probs)) if entropy_gradient else len(log_probs))


def _over(grad: Tensor, temperature: Tensor | None) -> Tensor:
    return grad if temperature is None else grad / temperature


def _common_factor(grad: Tensor, guess: Tensor) -> float | None:
    """The number that makes `guess` into `grad`; None if there is none to rounding."""
    if torch.equal(grad, guess):
        return 1.0
    size = float(guess.abs().max()) if guess.numel() else 0.0
    if not 0.0 < size < float("inf"):
        return None
    at = int(guess.abs().argmax())
    factor = float(grad.flatten()[at]) / float(guess.flatten()[at])
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
    more: MoreTokens | None = None,
    *,
    float32_logits: bool,
    logit_map: LogitMap,
    with_slope: bool = True,
) -> tuple[Tensor, Tensor | float]:
    """[A, V] softmax in the dtype of the weights; fills log-probabilities and `entropy`.

    With the slope of the logits in what the head gave: [A, V] where they are capped.
    """
    rest: Tensor | None = None
    if float32_logits:
        logits, rest = float32_product(hidden, weight)
    else:
        logits = torch.nn.functional.linear(hidden, weight, bias)
    kept = logits if logits.dtype == weight.dtype else torch.empty_like(logits, dtype=weight.dtype)
    slope = torch.empty_like(kept) if with_slope and logit_map.cap is not None else None
    rows, vocabulary = logits.shape
    kind = torch.promote_types(logits.dtype, torch.float32)
    block = min(rows, rows_of_block(logits.device, vocabulary * kind.itemsize))
    scratch = torch.empty(2, block, vocabulary, dtype=kind, device=logits.device)
    for start in range(0, rows, block):
        part = slice(start, min(start + block, rows))
        raw, probs = scratch[:, : part.stop - start]
        raw.copy_(logits[part])
        if rest is not None:
            raw += rest[part]
        if float32_logits and bias is not None:
            raw += bias
        logit_map.apply_(raw)
        if slope is not None:
            slope[part] = logit_map.slope(raw)
        if temperature is not None:
            raw /= temperature[part, None]
        torch.softmax(raw, dim=-1, out=probs)
        kept[part] = probs
        if log_probs is None or entropy is None:
            continue
        # The largest probability is 1 / sum exp(raw - max): no pass of its own for the log-sum-exp.
        log_sum = raw.amax(dim=1) - probs.amax(dim=1).log()
        log_probs[part] = raw.gather(1, target[part, None])[:, 0] - log_sum
        if more is not None:
            more.fill(part, raw, log_sum)
        # H = log_sum - sum p raw. An impossible token has p = 0, but 0 * -inf is a NaN.
        raw.clamp_(min=torch.finfo(kind).min).mul_(probs)
        entropy[part] = (log_sum - raw.sum(dim=1)).clamp_(min=0.0)
    return kept, logit_map.scale if slope is None else slope
