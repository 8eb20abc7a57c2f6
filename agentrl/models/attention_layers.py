"""Facts that a layer of `transformers` has for an attention function of ours, beside its tensors.

The trainer and the embedded engine both put their own function in the place of a model's. They read
window, sinks and soft cap of a layer alike, and refuse alike what neither of them computes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

_UNSUPPORTED = ("position_bias", "head_mask", "indices", "block_indices", "block_mask")
_MASK_OF_A_WINDOW = "create_sliding_window_causal_mask"
"""The function of transformers that modules import whose models have such masks."""
Position = TypeVar("Position", int, Tensor)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A query sees the keys from the beginning of its own chunk of the row on (Llama 4)."""

    size: int
    """Tokens of a chunk."""


Window = int | Chunk
"""Tokens that a query looks back on, its own included; or the chunk that it looks back in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreChanges:
    """Changes of a layer's scores beside their scale; the default is none."""

    softcap: float | None = None
    """Scores are `softcap * tanh(score / softcap)` (Gemma 2)."""
    sinks: Tensor | None = None
    """[H] Scores of a key without a value, one for each query head (gpt-oss)."""

    @property
    def is_plain(self) -> bool:
        """True if scores are only scaled."""
        return self.softcap is None and self.sinks is None


class CarryingMask(Tensor):
    """A mask of four dimensions, which models pass on as it is, with something else inside.

    Layers of some families (Nemotron, StableLM) pass nothing on to their attention but the mask.
    """

    content: Any

    @staticmethod
    def of(content: Any, device: torch.device) -> CarryingMask:
        """Wrap anything; on the device of the tokens, so that no library moves it."""
        found = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device).as_subclass(CarryingMask)
        found.content = content
        return found


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    """Names of the settings a layer passes that change its scores, and are not computed here."""
    return [name for name in _UNSUPPORTED if settings.get(name) is not None]


def first_seen(position: Position, window: Window) -> Position:
    """Position of the first key that a query at some position sees; below 0 for the beginning."""
    if isinstance(window, Chunk):
        return position // window.size * window.size
    return position - window + 1


def window_size(window: Window) -> int:
    """Most keys that a query sees."""
    return window.size if isinstance(window, Chunk) else window


def layer_window(module: Any, given: int | None) -> Window | None:
    """Tokens that a layer looks back on; None for all.

    Args:
        module: the attention layer.
        given: what it passes. A layer that leaves its window to the mask, as Qwen2-MoE does,
            passes none; its config has it.
    """
    if given is not None:
        return given
    config: Any = getattr(module, "config", None)
    layer = getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        # Phi-MoE has a window for all layers; configs of others have one that nothing reads.
        windowed = hasattr(sys.modules.get(type(module).__module__), _MASK_OF_A_WINDOW)
        return getattr(config, "sliding_window", None) if windowed else None
    if layer is None:
        return None
    if kinds[layer] == "chunked_attention":
        return Chunk(config.attention_chunk_size)
    return config.sliding_window if kinds[layer] == "sliding_attention" else None


def at_positions(module: Any, query: Tensor, positions_T: Tensor) -> Tensor:
    """Queries [1, H, T, D] with the temperature of their positions, where a layer has tuned them.

    Llama 4 does so by the index of a token among those that it is given, which is its position in
    one row alone, and not in packed ones.

    Args:
        module: the attention layer.
        query: [1, H, T, D].
        positions_T: [T] position of each token in its row.
    """
    if not getattr(module, "attn_temperature_tuning", False) or module.use_rope:
        return query
    wanted, had = (
        torch.log1p(torch.floor((at + 1.0) / module.floor_scale)) * module.attn_scale + 1.0
        for at in (positions_T.float(), torch.arange(len(positions_T), device=query.device).float())
    )
    return query * (wanted.to(query.device) / had).to(query.dtype)[:, None]
