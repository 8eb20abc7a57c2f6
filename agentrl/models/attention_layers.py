"""Facts that a layer of `transformers` has for an attention function of ours, beside its tensors.

The trainer and the embedded engine both put their own function in the place of a model's. They read
the window of a layer alike, and refuse alike what neither of them computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "head_mask")


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    """Names of the settings a layer passes that change its scores, and are not computed here."""
    return [name for name in _UNSUPPORTED if settings.get(name) is not None]


def layer_window(module: Any, given: int | None) -> int | None:
    """Tokens that a layer looks back on, the query's own included; None for all.

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
    if kinds is None or layer is None or kinds[layer] != "sliding_attention":
        return None
    return config.sliding_window
