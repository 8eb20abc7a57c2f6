"""Bytes of keys and values that one sequence takes in a cache, from a model's config alone.

    full attention    2 x key heads x head size, of every token
    sliding window    the same, of the last tokens that the window reaches
    MLA               one latent vector and one rotary key, of every token, for all heads together
    linear, mamba     a state of fixed size, however long the sequence is

Pure arithmetic. `tests/models/test_cache_bytes.py` counts the caches of built models beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_WINDOWED = frozenset({"sliding_attention", "chunked_attention"})
_STATES = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent"})
_NO_CACHE = frozenset({"mlp", "moe"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """The cache of one layer, in numbers and not in bytes."""

    heads: int
    """Heads with keys and values of their own; 1 where all share one latent vector."""
    head: int
    """Numbers of a token and head: key and value, or latent vector and rotary key."""
    window: int | None = None
    """Last tokens that stay; None keeps all."""
    state: int = 0
    """Numbers of a sequence, whatever its length."""

    def numbers(self, tokens: int, *, window_margin: int, split: int) -> int:
        """Numbers of one sequence on one of `split` devices.

        Args:
            tokens: length of the sequence.
            window_margin: tokens kept beyond the window.
            split: devices that divide the heads; each has one at least.
        """
        kept = tokens if self.window is None else min(tokens, self.window + window_margin)
        return -(-self.heads // split) * self.head * kept + -(-self.state // split)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """The caches of all layers of a model."""

    layers: tuple[LayerCache, ...]
    """Layers from the first to the last; those without a cache are left out."""
    kind: str
    """Description for messages, as in `24 layers of 8 key heads x 128`."""

    def sequence_bytes(
        self, tokens: int, *, width: int, margin: int = 0, tensor: int = 1, pipeline: int = 1
    ) -> int:
        """Bytes of one sequence of `tokens` tokens on one device.

        Args:
            tokens: length of the sequence.
            width: bytes of a number.
            margin: tokens that a windowed layer keeps beyond its window.
            tensor: devices that divide heads.
            pipeline: devices that divide layers; of the one with most.
        """
        sizes = [layer.numbers(tokens, window_margin=margin, split=tensor) for layer in self.layers]
        share = -(-len(sizes) // pipeline) if sizes else 0
        return width * max(
            (sum(sizes[start : start + share]) for start in range(0, len(sizes), share or 1)),
            default=0,
        )

    def token_bytes(self, *, width: int, tensor: int = 1, pipeline: int = 1) -> int:
        """Bytes that one more token takes as long as no window is full."""
        few = {"width": width, "tensor": tensor, "pipeline": pipeline}
        return self.sequence_bytes(1, **few) - self.sequence_bytes(0, **few)

    def longest(self, room: int, most: int, **how: int) -> int:
        """Tokens of the longest sequence, of at most `most`, that fits into `room` bytes."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.sequence_bytes(middle, **how) <= room:
                low = middle
            else:
                high = middle - 1
        return low


def cache_shape(config: Any) -> CacheShape:
    """The caches of a causal language model as servers keep them.

    Args:
        config: of `transformers`.
    """
    text = config.get_text_config()
    found = tuple(_layer(text, kind) for kind in layer_kinds(text))
    return CacheShape(
        layers=tuple(layer for layer in found if layer.head or layer.state), kind=_words(found)
    )


def layer_kinds(text: Any) -> tuple[str, ...]:
    """The kind of attention of every layer, as `layer_types` of `transformers` names them."""
    count = getattr(text, "num_hidden_layers", 0) or 0
    kinds: Sequence[str] | None = getattr(text, "layer_types", None) or getattr(
        text, "layers_block_type", None
    )
    if kinds:
        return tuple(kinds)[:count]
    if getattr(text, "num_attention_heads", None) is None:
        return ("mamba",) * count
    windowed = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    return ("sliding_attention" if windowed else "full_attention",) * count


def head_size(text: Any) -> int:
    """Numbers of one head's key."""
    given = getattr(text, "head_dim", None)
    return given or text.hidden_size // text.num_attention_heads


def key_width(text: Any) -> int:
    """Numbers of the keys of a token in one layer, where latent vectors are kept expanded."""
    heads = text.num_attention_heads
    if getattr(text, "kv_lora_rank", None):
        return heads * max(text.qk_nope_head_dim + text.qk_rope_head_dim, text.v_head_dim)
    return (getattr(text, "num_key_value_heads", None) or heads) * head_size(text)


def _layer(text: Any, kind: str) -> LayerCache:
    if kind in _NO_CACHE:
        return LayerCache(heads=0, head=0)
    if kind in _STATES:
        return LayerCache(heads=0, head=0, state=_state(text))
    latent = getattr(text, "kv_lora_rank", None)
    if latent:
        return LayerCache(heads=1, head=latent + text.qk_rope_head_dim)
    state = _state(text) if kind == "hybrid" else 0
    heads = getattr(text, "num_key_value_heads", None)
    if heads is None:
        heads = 1 if getattr(text, "multi_query", False) else text.num_attention_heads
    window = None
    if kind in _WINDOWED:
        window = getattr(text, "sliding_window", None)
        if kind == "chunked_attention":
            window = getattr(text, "attention_chunk_size", None) or window
    return LayerCache(heads=heads, head=2 * head_size(text), window=window, state=state)


def _state(text: Any) -> int:
    """Numbers of the state of a layer that reads tokens one after the other."""

    def of(*names: str) -> int | None:
        return next((v for name in names if (v := getattr(text, name, None))), None)

    hidden = text.hidden_size
    if values := of("linear_num_value_heads"):  # gated delta rule
        keys = text.linear_num_key_heads * text.linear_key_head_dim
        out = values * text.linear_value_head_dim
        return values * text.linear_key_head_dim * text.linear_value_head_dim + (2 * keys + out) * (
            of("linear_conv_kernel_dim") or 4
        )
    if short := of("conv_L_cache"):
        return hidden * short
    heads, each = of("mamba_n_heads", "mamba_num_heads"), of("mamba_d_head", "mamba_head_dim")
    inner = of("mamba_d_ssm") or (heads * each if heads and each else None)
    inner = inner or int(hidden * (of("mamba_expand", "expand") or 2))
    state = of("mamba_d_state", "ssm_state_size", "state_size", "mamba_ssm_state_size") or 16
    groups = of("mamba_n_groups", "n_groups", "mamba_ngroups")
    kept = of("mamba_d_conv", "conv_kernel", "mamba_conv_kernel") or 4
    return inner * state + (inner + (2 * groups * state if groups else 0)) * kept


def _words(layers: Sequence[LayerCache]) -> str:
    """As in `24 layers of 8 key heads x 128, 12 of them with a window of 4096`."""
    with_keys = [layer for layer in layers if layer.head]
    parts: list[str] = []
    if with_keys:
        first = with_keys[0]
        parts.append(f"{len(with_keys)} layers of {first.heads} x {first.head} numbers a token")
    if windowed := [layer.window for layer in with_keys if layer.window is not None]:
        parts.append(f"{len(windowed)} of them with a window of {max(windowed)}")
    if states := [layer for layer in layers if layer.state]:
        parts.append(f"{len(states)} with a state of {states[0].state} numbers")
    return ", ".join(parts) or "no cache"
