"""Attention over trees of segments in one kernel, for a GPU: torch's FlexAttention.

The mask is a function of two packed positions and nothing else, so a tree of any depth costs one
compiled kernel, which skips blocks without a visible key.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from agentrl.train.model.segments import Segments, positions, reach

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""`(batch, head, query, key)`, all indices, to whether the query sees the key."""


def flexible_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments,
    sliding_window: int | None,
    scale: float,
) -> Tensor:
    """[1, T, H, D]; arguments as those of `attention.fused_attention`."""
    mask = _block_mask(segments, sliding_window, query.device)
    out = _compiled()(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
    return out.transpose(1, 2)


def visible(segments: Segments, sliding_window: int | None, device: torch.device) -> MaskFunction:
    """The mask of a tree: a query sees what lies on its path, as far back as the window goes."""
    reach_T = torch.tensor(reach(segments), device=device)
    position_T = torch.tensor(positions(segments), device=device)

    def on_path(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (key <= query) & (query < reach_T[key])
        if sliding_window is not None:
            seen = seen & (position_T[query] - position_T[key] < sliding_window)
        return seen

    return on_path


@lru_cache(maxsize=4)
def _block_mask(segments: Segments, sliding_window: int | None, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    tokens = segments.num_tokens
    mask = visible(segments, sliding_window, device)
    return create_block_mask(mask, None, None, tokens, tokens, device=device)


@lru_cache(maxsize=1)
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    # Every micro-batch has another length: one kernel for all of them.
    return torch.compile(flex_attention, dynamic=True)
