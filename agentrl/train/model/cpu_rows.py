"""Attention over packed rows on a CPU: batched matrix products and a softmax that is written out.

Several times as fast as torch's fused kernel for CPUs at the lengths of a rollout. A block of
queries sees only the keys before its end, which also saves the masked half of the work.

Legend: `H` query heads, `K` key heads, `T` packed tokens, `D` head dimension, `L` keys of a span,
`B` queries of a block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentrl.models.attention_layers import Window
from agentrl.train.model.segments import (
    Block,
    Segments,
    Span,
    attention_plan,
    future,
    outside_window,
    query_block,
)


class CpuRows(torch.autograd.Function):
    """Exact causal attention per row, softmax written out; nothing of [T, T] is kept.

    Query heads that share a key head are folded into the query dimension, so that grouped heads
    need no repeated keys. The backward pass computes the probabilities of a block again.

    A sink is one more score in the softmax, without a value: the other probabilities then sum to
    less than 1, which the gradient of a softmax allows.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        segments: Segments,
        sliding_window: Window | None,
        scale: float,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """[1, T, H, D]; arguments as those of `attention.fused_attention`."""
        _, heads, tokens, _ = query.shape
        out = query.new_empty(1, tokens, heads, value.shape[-1])
        ctx.plan = attention_plan(
            segments, sliding_window, query_block(heads, key.shape[1], key.dtype)
        )
        for span in ctx.plan:
            keys, values = _gathered(key, span), _gathered(value, span)
            for block in span.blocks:
                seen = slice(block.first_key, block.last_key)
                probs, _, _ = _block_probabilities(query, keys, block, scale, softcap, sinks)
                mixed = torch.bmm(probs, values[:, seen])
                out[0, block.begin : block.end] = _unfold(mixed, block.end - block.begin)
        ctx.save_for_backward(query, key, value, sinks)
        ctx.scale, ctx.softcap = scale, softcap
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of queries, keys, values and sinks."""
        query, key, value, sinks = ctx.saved_tensors
        (grad_out,) = grads
        kv_heads, scale = key.shape[1], ctx.scale
        grad_sinks = None if sinks is None else torch.zeros_like(sinks)
        grad_query = torch.empty_like(query)
        grad_key = torch.zeros_like(key, memory_format=torch.contiguous_format)
        grad_value = torch.zeros_like(value, memory_format=torch.contiguous_format)
        for span in ctx.plan:
            keys, values = _gathered(key, span), _gathered(value, span)
            into_keys, into_values = torch.zeros_like(keys), torch.zeros_like(values)
            for block in span.blocks:
                queries, size = slice(block.begin, block.end), block.end - block.begin
                seen = slice(block.first_key, block.last_key)
                probs, slope, sunk = _block_probabilities(
                    query, keys, block, scale, ctx.softcap, sinks
                )
                grad_mixed = _fold(grad_out[0, queries].transpose(0, 1), kv_heads)
                into_values[:, seen].baddbmm_(probs.transpose(1, 2), grad_mixed)
                grad_probs = torch.bmm(grad_mixed, values[:, seen].transpose(1, 2))
                grad_scores = torch.ops.aten._softmax_backward_data(
                    grad_probs, probs, -1, probs.dtype
                )
                if grad_sinks is not None and sunk is not None:
                    through = (grad_probs * probs).sum(-1).mul_(sunk)
                    grad_sinks -= through.view(len(grad_sinks), size).sum(1)
                if slope is not None:
                    grad_scores.mul_(slope)
                folded = torch.bmm(grad_scores, keys[:, seen]).mul_(scale)
                grad_query[0, :, queries] = _unfold(folded, size).transpose(0, 1)
                scaled = _fold(query[0, :, queries], kv_heads) * scale
                into_keys[:, seen].baddbmm_(grad_scores.transpose(1, 2), scaled)
            _scatter(grad_key, into_keys, span)
            _scatter(grad_value, into_values, span)
        return grad_query, grad_key, grad_value, None, None, None, None, grad_sinks


def _gathered(tensor: Tensor, span: Span) -> Tensor:
    """[K, L, D] keys or values of a span. A copy: products on views are a fifth slower."""
    parts = [tensor[0, :, start:end] for start, end in span.ranges]
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts, dim=1)


def _scatter(total: Tensor, sums: Tensor, span: Span) -> None:
    offset = 0
    for start, end in span.ranges:
        total[0, :, start:end] += sums[:, offset : offset + end - start]
        offset += end - start


def _fold(rows: Tensor, kv_heads: int) -> Tensor:
    """[H, B, D] -> [K, H / K * B, D]."""
    heads, block, dim = rows.shape
    return rows.reshape(kv_heads, heads // kv_heads * block, dim)


def _unfold(folded: Tensor, block: int) -> Tensor:
    """[K, H / K * B, D] -> [B, H, D]."""
    return folded.reshape(-1, block, folded.shape[-1]).transpose(0, 1)


def _block_probabilities(
    query: Tensor,
    keys: Tensor,
    block: Block,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """[K, H / K * B, seen keys] attention of the queries of a block.

    With the slope of capped scores, of the same shape, and [K, H / K * B] shares of the sinks.
    """
    size, number = block.end - block.begin, block.last_key - block.first_key
    scaled = _fold(query[0, :, block.begin : block.end], keys.shape[0]) * scale
    scores = torch.bmm(scaled, keys[:, block.first_key : block.last_key].transpose(1, 2))
    slope = None
    if softcap is not None:
        scores.div_(softcap).tanh_()
        slope = 1.0 - scores.square()
        scores.mul_(softcap)
    # Only the last keys are ever in the future of a query of this block, or a sibling's.
    by_query = scores.view(-1, size, number)
    by_query[:, :, number - size :] += future(block.siblings, block.mutual, scores.dtype)
    if block.window is not None:
        by_query += outside_window(size, number, block.window, scores.dtype)
    if sinks is None:
        return torch.softmax(scores, dim=-1), slope, None
    sink = sinks.to(scores.dtype)[:, None].expand(-1, size).reshape(len(keys), -1, 1)
    probs = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)
    return probs[..., :-1].contiguous(), slope, probs[..., -1]
