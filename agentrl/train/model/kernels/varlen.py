"""Attention over trees of segments by kernels for rows of different lengths: flash attention.

Such a kernel takes rows of queries and rows of keys whose last ones are the queries' own. Each
segment is a row of queries, and its keys are the path from the root to its end, gathered anew for
each segment; rows that share nothing are taken as they lie.

Legend: `_T` packed tokens, `_L` keys of all rows, `_N` rows, `H` query heads, `K` key heads, `D`
head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from agentrl.models.attention_layers import Chunk, Window, first_seen
from agentrl.train.model.segments import Segments, path_ranges, within_chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRows:
    """Rows of queries and keys of a micro-batch."""

    query_ends: Tensor
    """[N + 1] int32: 0, and one past the last query of each row."""
    key_ends: Tensor
    """[N + 1] int32 likewise of keys."""
    keys_L: Tensor | None
    """[L] Packed position of each key; None where they lie as the queries do."""
    most_queries: int
    """Queries of the longest row."""
    most_keys: int
    """Keys of the longest row."""


RowsKernel = Callable[[Tensor, Tensor, Tensor, KernelRows, int, float, float | None], Tensor]
"""From queries [T, H, D], keys and values [L, K, D], rows, keys that a query sees beside its own
(-1: all before it), scale and soft cap to [T, H, D]."""


def varlen_attention(
    kernel: RowsKernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments,
    window: Window | None,
    scale: float,
    softcap: float | None = None,
) -> Tensor:
    """[1, T, H, D]; arguments as those of `attention.fused_attention`."""
    rows = kernel_rows(segments, window, query.device)
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if rows.keys_L is not None:
        keys, values = (_Gathered.apply(tensor, rows.keys_L) for tensor in (keys, values))
    # The rows of a chunk begin with it.
    back = window - 1 if isinstance(window, int) else -1
    return kernel(queries, keys, values, rows, back, scale, softcap)[None]


@lru_cache(maxsize=4)
def kernel_rows(segments: Segments, window: Window | None, device: torch.device) -> KernelRows:
    """The rows of a micro-batch; segments are cut where a chunk of their row ends."""
    queries: list[int] = []
    keys: list[Tensor] = []
    for segment, length in enumerate(segments.lengths):
        path = torch.cat([torch.arange(*ends) for ends in path_ranges(segments, segment)])
        depth = len(path) - length
        pieces = iter([(0, length)])
        if isinstance(window, Chunk):
            pieces = within_chunks(pieces, depth, window.size)
        for begin, end in pieces:
            first = 0 if window is None else max(0, first_seen(depth + begin, window))
            queries.append(end - begin)
            keys.append(path[first : depth + end])
    counts = [len(row) for row in keys]
    as_they_lie = sum(counts) == sum(queries)  # every row ends with its own
    query_ends, key_ends = (
        torch.tensor([0, *accumulate(each)], dtype=torch.int32, device=device)
        for each in (queries, counts)
    )
    return KernelRows(
        query_ends=query_ends,
        key_ends=key_ends,
        keys_L=None if as_they_lie else torch.cat(keys).to(device),
        most_queries=max(queries),
        most_keys=max(counts),
    )


class _Gathered(torch.autograd.Function):
    """Keys or values by position, whose gradients are summed in float32 at least."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.length = len(tensor)
        return tensor.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (index,), (grad,) = ctx.saved_tensors, grads
        wide = torch.promote_types(grad.dtype, torch.float32)
        total = grad.new_zeros((ctx.length, *grad.shape[1:]), dtype=wide)
        return total.index_add_(0, index, grad.to(wide)).to(grad.dtype), None


def torch_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: KernelRows,
    back: int,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """The kernel that torch brings along, a `RowsKernel`; it caps no scores."""
    from torch.nn.attention.varlen import varlen_attn

    assert softcap is None
    out: Any = varlen_attn(
        query,
        key,
        value,
        rows.query_ends,
        rows.key_ends,
        rows.most_queries,
        rows.most_keys,
        scale=scale,
        window_size=(back, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out


def flash_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: KernelRows,
    back: int,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """The kernel of the package flash-attn, a `RowsKernel`."""
    import flash_attn  # type: ignore[import-not-found]

    return flash_attn.flash_attn_varlen_func(
        query,
        key,
        value,
        cu_seqlens_q=rows.query_ends,
        cu_seqlens_k=rows.key_ends,
        max_seqlen_q=rows.most_queries,
        max_seqlen_k=rows.most_keys,
        softmax_scale=scale,
        causal=True,
        window_size=(back, 0),
        softcap=softcap or 0.0,
    )
