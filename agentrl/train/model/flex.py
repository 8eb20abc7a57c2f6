"""Attention over trees of segments in one kernel, for a GPU: torch's FlexAttention.

The mask is a function of two packed positions and nothing else, so a tree of any depth costs one
compiled kernel, which skips blocks without a visible key.

Legend: `_T` packed tokens, `_K` key blocks, `_B` tokens of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentrl.models.attention_layers import ScoreChanges, Window, first_seen
from agentrl.train.model.segments import Segments, positions, reach

_MOST_KERNELS = 64
"""Kernels that are compiled before torch gives up; its own limit is 8."""
_BLOCK = 128
"""Queries and keys of a block of the mask; torch's own default."""
_NO_CHANGES = ScoreChanges()

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""`(batch, head, query, key)`, all indices, to whether the query sees the key."""


def flexible_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments,
    sliding_window: Window | None,
    scale: float,
    changes: ScoreChanges = _NO_CHANGES,
) -> Tensor:
    """[1, T, H, D]; arguments as those of `attention.fused_attention`."""
    mask = block_mask(segments, sliding_window, query.device)
    return changed_flex(_compiled(), query, key, value, mask, scale, changes).transpose(1, 2)


def changed_flex(
    kernel: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    scale: float,
    changes: ScoreChanges,
) -> Tensor:
    """[1, H, T, D] of torch's `flex_attention`, compiled or not, with capped scores and sinks."""
    given: dict[str, Any] = {"block_mask": mask, "scale": scale, "enable_gqa": True}
    if changes.softcap is not None:
        given["score_mod"] = _capped(changes.softcap)
    if changes.sinks is None:
        return kernel(query, key, value, **given)
    out, log_sum = _with_log_sum(kernel, query, key, value, **given)
    # A sink takes its share of the sum, and adds nothing.
    share = torch.sigmoid(log_sum - changes.sinks[None, :, None].to(log_sum.dtype))
    return out * share[..., None].to(out.dtype)


def _with_log_sum(kernel: Any, *tensors: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    """Output, and the logarithm of the sum of each query, [1, H, T]."""
    import torch.nn.attention.flex_attention as flex

    if not hasattr(flex, "AuxRequest"):  # before torch 2.9
        return kernel(*tensors, **given, return_lse=True)
    out, aux = kernel(*tensors, **given, return_aux=flex.AuxRequest(lse=True))
    return out, aux.lse


@lru_cache(maxsize=8)
def _capped(cap: float) -> Callable[..., Tensor]:
    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return capped


def visible(
    segments: Segments, sliding_window: Window | None, device: torch.device
) -> MaskFunction:
    """The mask of a tree: a query sees what lies on its path, as far back as the window goes."""
    reach_T = torch.tensor(reach(segments), device=device)
    position_T = torch.tensor(positions(segments), device=device)

    def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < reach_T[key])

    on_path = _or_mutual(causal, segments, device) if segments.mutual else causal
    if sliding_window is None:
        return on_path
    # A tensor: with dynamic shapes a captured number becomes a symbol, which kernels cannot take.
    first_T = first_seen(position_T, sliding_window)

    def in_window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return on_path(batch, head, query, key) & (position_T[key] >= first_T[query])

    return in_window


def _or_mutual(causal: MaskFunction, segments: Segments, device: torch.device) -> MaskFunction:
    """A mask that also shows tokens of an image those behind them."""
    # The same number for the tokens of one image, and another one for every other token.
    group = torch.arange(segments.num_tokens)
    for start, end in segments.mutual:
        group[start:end] = start
    group_T = group.to(device)

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return causal(batch, head, query, key) | (group_T[query] == group_T[key])

    return seen


@lru_cache(maxsize=4)
def block_mask(segments: Segments, sliding_window: Window | None, device: torch.device) -> Any:
    """The mask of a tree with the blocks that the kernel visits, as a torch `BlockMask`.

    torch's `create_block_mask` forms the mask of all T x T pairs first. Here the blocks follow from
    the last query that each key reaches: memory and time are those of (T / 128)^2.
    """
    from torch.nn.attention.flex_attention import BlockMask

    tokens = segments.num_tokens
    count = -(-tokens // _BLOCK)
    reach_KB = pad(torch.tensor(reach(segments)), (0, count * _BLOCK - tokens)).view(count, _BLOCK)
    index = torch.arange(count)
    first, after = index * _BLOCK, ((index + 1) * _BLOCK).clamp(max=tokens)
    before = index[None] < index[:, None]
    seen = (before & (reach_KB.amax(1)[None] > first[:, None])) | torch.eye(count).bool()
    whole = before & (reach_KB.amin(1)[None] >= after[:, None])
    for start, end in segments.mutual:
        touched, inside = (
            slice(start // _BLOCK, -(-end // _BLOCK)),
            slice(-(-start // _BLOCK), end // _BLOCK),
        )
        seen[touched, touched] = True
        whole[inside, inside] = True
    if sliding_window is not None:
        whole = torch.zeros_like(whole)
    partial, full = (_block_list(blocks, device) for blocks in (seen & ~whole, whole))
    mask = visible(segments, sliding_window, device)
    return BlockMask.from_kv_blocks(
        *partial, *full, BLOCK_SIZE=_BLOCK, mask_mod=mask, seq_lengths=(tokens, tokens)
    )


def _block_list(blocks: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Count and indices of the key blocks of each query block, [1, 1, Q] and [1, 1, Q, K]."""
    counts = blocks.sum(1).to(torch.int32)
    indices = blocks.to(torch.int8).argsort(dim=1, descending=True, stable=True).to(torch.int32)
    return counts[None, None].to(device), indices[None, None].to(device)


@lru_cache(maxsize=1)
def _compiled() -> Any:
    import torch._dynamo.config as limits
    from torch.nn.attention.flex_attention import flex_attention

    # One for each dtype, shape of heads, window or none, with and without gradients, of policy,
    # reference and critic. Beyond its limit torch would form all scores, and run out of memory.
    name = "recompile_limit" if hasattr(limits, "recompile_limit") else "cache_size_limit"
    setattr(limits, name, max(getattr(limits, name), _MOST_KERNELS))
    # Every micro-batch has another length: one kernel for all of them.
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)
