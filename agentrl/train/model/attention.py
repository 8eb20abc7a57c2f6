"""Attention over packed rows: every row attends causally to itself and to nothing else.

Tokens of an image attend to each other in both directions where the model reads it as a whole.

Registered with transformers' `AttentionInterface` under a name of our own, so that no model file is
touched. Rows are distinguished by their segments, not by a [T, T] mask; rows with a common prefix
share its keys and values. On a GPU all rows go through FlexAttention in one kernel, and where it
has none for them one by one through torch's fused kernels. On a CPU those are several times slower
than plain batched matrix products at the lengths of a rollout, so there the softmax is written out,
block by block over the queries: a block sees only the keys before its end, which also saves the
masked half of the work.

Legend: `H` query heads, `K` key heads, `T` packed tokens, `D` head dimension, `L` keys of a span.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.errors import TrainError
from agentrl.models.attention_layers import layer_window, unsupported
from agentrl.models.fused_attention import without_plans
from agentrl.models.vision.embed import language_model
from agentrl.models.vision.reader import reader_of
from agentrl.train.model.flex import flexible_attention, is_flexible
from agentrl.train.model.segments import (
    Block,
    Segments,
    Span,
    attention_plan,
    future,
    mutual_within,
    outside_window,
    path_ranges,
    query_block,
    starts,
)

ATTENTION = "agentrl_packed_rows"


@contextmanager
def packed_attention(model: Any) -> Iterator[None]:
    """Inside the block the model runs on packed rows; the engine's own choice comes back after.

    Forward and backward both belong inside: with gradient checkpointing the backward pass runs the
    attention again.
    """
    configs = _attention_configs(model)
    before = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


def _attention_configs(model: Any) -> list[Any]:
    """Every distinct config in the model; all its attention layers read one of them.

    Of a vision-language model those of the language part alone: the tower attends to all of an
    image, and to one image at a time.
    """
    part = model if reader_of(model) is None else language_model(model)
    configs = {id(part.config): part.config}
    for module in part.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            configs[id(config)] = config
    return list(configs.values())


def _packed_rows(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    segments: Segments | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls.

    Args:
        module: the attention layer; its dropout is not applied, because the log-probabilities of
            the trainer and of the sampler must be those of one function.
        query: [1, H, T, D].
        key: [1, K, T, D].
        value: [1, K, T, D].
        attention_mask: None; packed rows need none.
        scaling: factor on the scores; default 1 / sqrt(D).
        sliding_window: keys a query may look back on, itself included.
        segments: what the T tokens are.
        kwargs: what else the model passes; features that change the scores are refused.

    Returns:
        [1, T, H, D], and None for the attention weights.
    """
    if segments is None:
        raise TrainError(
            f"{type(module).__name__} does not hand keyword arguments on to its attention "
            "function, so rows cannot be packed with this model"
        )
    used = unsupported(kwargs)
    if used or attention_mask is not None:
        raise TrainError(
            f"{type(module).__name__} uses {used or ['attention_mask']}, which attention over "
            "packed rows does not implement"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    sliding_window = layer_window(module, sliding_window)
    if sliding_window is not None and sliding_window >= segments.num_tokens:
        sliding_window = None
    if query.device.type == "cpu":
        return _CpuRows.apply(query, key, value, segments, sliding_window, scale), None
    if is_flexible(query, value):
        return flexible_attention(query, key, value, segments, sliding_window, scale), None
    without_plans(query.device)
    return fused_attention(query, key, value, segments, sliding_window, scale), None


AttentionInterface.register(ATTENTION, _packed_rows)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments,
    sliding_window: int | None,
    scale: float,
) -> Tensor:
    """[1, T, H, D] through torch's fused kernels, segment by segment."""
    share = query.shape[1] // key.shape[1]
    outputs = []
    for segment, (start, length) in enumerate(zip(starts(segments), segments.lengths, strict=True)):
        ranges = path_ranges(segments, segment)
        k, v = (
            torch.cat([tensor[:, :, begin:end] for begin, end in ranges], dim=2)
            for tensor in (key, value)
        )
        mask = None
        mutual = mutual_within(segments, start, start + length)
        if sliding_window is not None or k.shape[2] != length or mutual:
            # The last key is the last query's own.
            depth = k.shape[2] - length
            mask = torch.ones(length, k.shape[2], dtype=torch.bool, device=query.device).tril(depth)
            for begin, end in mutual:
                mask[begin:end, depth + begin : depth + end] = True
            if sliding_window is not None:
                mask = mask.triu(depth + 1 - sliding_window)
        # Of torch's kernels for a GPU only the one for narrow dtypes without a mask knows groups:
        # for all others repeated heads cost less than scores of every pair.
        grouped = share == 1 or (mask is None and query.dtype in (torch.bfloat16, torch.float16))
        if not grouped:
            k, v = (tensor.repeat_interleave(share, dim=1) for tensor in (k, v))
        outputs.append(
            scaled_dot_product_attention(
                query[:, :, start : start + length],
                k,
                v,
                attn_mask=mask,
                is_causal=mask is None,
                scale=scale,
                enable_gqa=grouped and share > 1,
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2)


class _CpuRows(torch.autograd.Function):
    """Exact causal attention per row, softmax written out; nothing of [T, T] is kept.

    Query heads that share a key head are folded into the query dimension, so that grouped heads
    need no repeated keys. The backward pass computes the probabilities of a block again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        segments: Segments,
        sliding_window: int | None,
        scale: float,
    ) -> Tensor:
        _, heads, tokens, _ = query.shape
        out = query.new_empty(1, tokens, heads, value.shape[-1])
        ctx.plan = attention_plan(
            segments, sliding_window, query_block(heads, key.shape[1], key.dtype)
        )
        for span in ctx.plan:
            keys, values = _gathered(key, span), _gathered(value, span)
            for block in span.blocks:
                seen = slice(block.first_key, block.last_key)
                probs = _block_probabilities(query, keys, block, scale)
                mixed = torch.bmm(probs, values[:, seen])
                out[0, block.begin : block.end] = _unfold(mixed, block.end - block.begin)
        ctx.save_for_backward(query, key, value)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        query, key, value = ctx.saved_tensors
        (grad_out,) = grads
        kv_heads, scale = key.shape[1], ctx.scale
        grad_query = torch.empty_like(query)
        grad_key = torch.zeros_like(key, memory_format=torch.contiguous_format)
        grad_value = torch.zeros_like(value, memory_format=torch.contiguous_format)
        for span in ctx.plan:
            keys, values = _gathered(key, span), _gathered(value, span)
            into_keys, into_values = torch.zeros_like(keys), torch.zeros_like(values)
            for block in span.blocks:
                queries, size = slice(block.begin, block.end), block.end - block.begin
                seen = slice(block.first_key, block.last_key)
                probs = _block_probabilities(query, keys, block, scale)
                grad_mixed = _fold(grad_out[0, queries].transpose(0, 1), kv_heads)
                into_values[:, seen].baddbmm_(probs.transpose(1, 2), grad_mixed)
                grad_probs = torch.bmm(grad_mixed, values[:, seen].transpose(1, 2))
                grad_scores = torch.ops.aten._softmax_backward_data(
                    grad_probs, probs, -1, probs.dtype
                )
                folded = torch.bmm(grad_scores, keys[:, seen]).mul_(scale)
                grad_query[0, :, queries] = _unfold(folded, size).transpose(0, 1)
                scaled = _fold(query[0, :, queries], kv_heads) * scale
                into_keys[:, seen].baddbmm_(grad_scores.transpose(1, 2), scaled)
            _scatter(grad_key, into_keys, span)
            _scatter(grad_value, into_values, span)
        return grad_query, grad_key, grad_value, None, None, None


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


def _block_probabilities(query: Tensor, keys: Tensor, block: Block, scale: float) -> Tensor:
    """[K, H / K * B, seen keys] attention of the queries of a block."""
    size, number = block.end - block.begin, block.last_key - block.first_key
    scaled = _fold(query[0, :, block.begin : block.end], keys.shape[0]) * scale
    scores = torch.bmm(scaled, keys[:, block.first_key : block.last_key].transpose(1, 2))
    # Only the last keys are ever in the future of a query of this block, or a sibling's.
    by_query = scores.view(-1, size, number)
    by_query[:, :, number - size :] += future(block.siblings, block.mutual, scores.dtype)
    if block.window is not None:
        by_query += outside_window(size, number, block.window, scores.dtype)
    return torch.softmax(scores, dim=-1)
