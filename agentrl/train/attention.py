"""Attention over packed rows: every row attends causally to itself and to nothing else.

Registered with transformers' `AttentionInterface` under a name of our own, so that no model file is
touched. Rows are told apart by their lengths, not by a [T, T] mask. On a GPU each row goes through
torch's fused kernel. On a CPU those kernels are several times slower than plain batched matrix
products at the lengths of a rollout, so there the softmax is written out, block by block over the
queries: a block sees only the keys before its end, which also saves the masked half of the work.

Legend: `H` query heads, `K` key heads, `T` packed tokens, `D` head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.errors import TrainError

ATTENTION = "agentrl_packed_rows"
_QUERY_BLOCK = 128
_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "head_mask")


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
    """Every distinct config in the model; all its attention layers read one of them."""
    configs = {id(model.config): model.config}
    for module in model.modules():
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
    row_lengths: Sequence[int] | None = None,
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
        row_lengths: tokens of each row; sums to T.
        kwargs: what else the model passes; features that change the scores are refused.

    Returns:
        [1, T, H, D], and None for the attention weights.
    """
    if row_lengths is None:
        raise TrainError(
            f"{type(module).__name__} does not hand keyword arguments on to its attention "
            "function, so rows cannot be packed with this model"
        )
    used = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if used or attention_mask is not None:
        raise TrainError(
            f"{type(module).__name__} uses {used or ['attention_mask']}, which attention over "
            "packed rows does not implement"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    lengths = tuple(row_lengths)
    if sliding_window is not None and sliding_window >= max(lengths):
        sliding_window = None
    if query.device.type == "cpu" and sliding_window is None:
        return _CpuRows.apply(query, key, value, lengths, scale), None
    return _fused_rows(query, key, value, lengths, scale, sliding_window), None


AttentionInterface.register(ATTENTION, _packed_rows)


def _fused_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    outputs = []
    parts = (tensor.split(lengths, dim=2) for tensor in (query, key, value))
    for q, k, v in zip(*parts, strict=True):
        mask = None
        if sliding_window is not None:
            mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device)
            mask = mask.tril().triu(1 - sliding_window)
        outputs.append(
            scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
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
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...], scale: float
    ) -> Tensor:
        _, heads, tokens, _ = query.shape
        out = query.new_empty(1, tokens, heads, value.shape[-1])
        for start, end, begin in _blocks(lengths):
            probs = _block_probabilities(query, key, start, end, begin, scale)
            mixed = torch.bmm(probs, value[0, :, start:end])
            out[0, begin:end] = _unfold(mixed, end - begin)
        ctx.save_for_backward(query, key, value)
        ctx.lengths, ctx.scale = lengths, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value = ctx.saved_tensors
        (grad_out,) = grads
        kv_heads, scale = key.shape[1], ctx.scale
        grad_query = torch.empty_like(query)
        grad_key = torch.zeros_like(key, memory_format=torch.contiguous_format)
        grad_value = torch.zeros_like(value, memory_format=torch.contiguous_format)
        for start, end, begin in _blocks(ctx.lengths):
            keys, block = slice(start, end), end - begin
            probs = _block_probabilities(query, key, start, end, begin, scale)
            grad_mixed = _fold(grad_out[0, begin:end].transpose(0, 1), kv_heads)
            grad_value[0, :, keys] += torch.bmm(probs.transpose(1, 2), grad_mixed)
            grad_probs = torch.bmm(grad_mixed, value[0, :, keys].transpose(1, 2))
            grad_scores = torch.ops.aten._softmax_backward_data(grad_probs, probs, -1, probs.dtype)
            folded = torch.bmm(grad_scores, key[0, :, keys]).mul_(scale)
            grad_query[0, :, begin:end] = _unfold(folded, block).transpose(0, 1)
            scaled = _fold(query[0, :, begin:end], kv_heads) * scale
            grad_key[0, :, keys] += torch.bmm(grad_scores.transpose(1, 2), scaled)
        return grad_query, grad_key, grad_value, None, None


def _blocks(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """`(first key, one past the last key and query, first query)` of each block of queries."""
    start = 0
    for length in lengths:
        for begin in range(start, start + length, _QUERY_BLOCK):
            yield start, min(begin + _QUERY_BLOCK, start + length), begin
        start += length


def _fold(rows: Tensor, kv_heads: int) -> Tensor:
    """[H, B, D] -> [K, H / K * B, D]."""
    heads, block, dim = rows.shape
    return rows.reshape(kv_heads, heads // kv_heads * block, dim)


def _unfold(folded: Tensor, block: int) -> Tensor:
    """[K, H / K * B, D] -> [B, H, D]."""
    return folded.reshape(-1, block, folded.shape[-1]).transpose(0, 1)


def _block_probabilities(
    query: Tensor, key: Tensor, start: int, end: int, begin: int, scale: float
) -> Tensor:
    """[K, H / K * B, keys] attention of queries [begin, end) over keys [start, end)."""
    kv_heads, block = key.shape[1], end - begin
    scaled = _fold(query[0, :, begin:end], kv_heads) * scale
    scores = torch.bmm(scaled, key[0, :, start:end].transpose(1, 2))
    # Only the last keys are ever in the future of a query of this block.
    by_query = scores.view(-1, block, end - start)
    by_query[:, :, begin - start :] += _future(block, scores.dtype)
    return torch.softmax(scores, dim=-1)


@lru_cache(maxsize=4 * _QUERY_BLOCK)
def _future(block: int, dtype: torch.dtype) -> Tensor:
    """[B, B] what is added to scores: 0 where the key is not after the query, -inf where it is."""
    return torch.full((block, block), float("-inf"), dtype=dtype).triu_(1)
