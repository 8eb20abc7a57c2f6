"""Facts that a layer of `transformers` has for an attention function of ours, beside its tensors.

The trainer and the embedded engine both put their own function in the place of a model's. They read
window, sinks and soft cap of a layer alike, and refuse alike what neither of them computes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

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

    Layers of some families pass nothing on to their attention but the mask (Nemotron, StableLM), or
    have an attention of their own that meets it: torch's function (Falcon), or a method of the
    layer (GPT-J). Both hand over to the attention function that the mask names.
    """

    content: Any
    function: str
    met: int
    """Calls of torch's function so far; each is that of the next layer."""

    @staticmethod
    def of(content: Any, device: torch.device, function: str) -> CarryingMask:
        """Wrap anything; on the device of the tokens, so that no library moves it.

        Args:
            content: for the attention function.
            device: of the tokens.
            function: its name in transformers' `AttentionInterface`.
        """
        found = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device).as_subclass(CarryingMask)
        found.content, found.function, found.met = content, function, 0
        return found

    def attend(self, layer: Any, query: Tensor, key: Tensor, value: Tensor, scale: Any) -> Tensor:
        """[1, H, T, D] of the named function; `layer` is None where torch's own was called."""
        function = AttentionInterface()[self.function]
        return function(layer, query, key, value, self, scaling=scale)[0].transpose(1, 2)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Attention of ours in the place of torch's."""
        given = kwargs or {}
        if func is scaled_dot_product_attention:
            mask = given.get("attn_mask")
            if len(args) == 3 and isinstance(mask, CarryingMask):
                query, key, value = args
                out = mask.attend(None, query, key, value, given.get("scale"))
                mask.met += 1
                return out
        return super().__torch_function__(func, types, args, given)


def reach_own_attention(model: Any) -> None:
    """Make layers with an attention of their own, a method `_attn`, heed a `CarryingMask`.

    The method stays what it is for every other mask.

    Args:
        model: of GPT-J, CodeGen; others are left as they are.
    """
    for kind in {type(part) for part in model.modules() if hasattr(part, "scale_attn")}:
        own = getattr(kind, "_attn", None)
        if own is not None and not hasattr(own, "__wrapped__"):
            kind._attn = _carried(own)


def _carried(own: Any) -> Any:
    @wraps(own)
    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None
    ) -> Any:
        if not isinstance(attention_mask, CarryingMask):
            return own(module, query, key, value, attention_mask)
        return attention_mask.attend(module, query, key, value, 1.0 / module.scale_attn), None

    return attend


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
