"""Attention of the tokens of one pass to the rows of a `KvCache`, which they write first.

On a CPU decoded tokens and prompts have the same arithmetic, that of `row_attention`, so that it
does not matter which of them computed a position.

Legend: `_N` active rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from agentrl.models.attention_layers import ScoreChanges, Window, first_seen, window_size
from agentrl.models.fused_attention import formed_attention
from agentrl.serving.cache_room import TILE, tiled
from agentrl.serving.embedded.kv_cache import KvCache
from agentrl.serving.embedded.pictures import PromptImages
from agentrl.serving.embedded.row_attention import row_attention

_NO_CHANGES = ScoreChanges()


class CacheAttention(Protocol):
    """The attention of some tokens of a pass."""

    positions: torch.Tensor
    """[L] Position of each token in its row."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        window: Window | None = None,
        changes: ScoreChanges = _NO_CHANGES,
    ) -> torch.Tensor:
        """Keep the tokens' keys and values, and return their attention, [1, L, H, D].

        Args:
            layer: of the model.
            query: [1, H, L, D].
            key: [1, K, L, D].
            value: [1, K, L, D], or narrower than the keys.
            scale: factor on the scores; None is D ** -0.5.
            window: keys a query may look back on, its own included; None for all.
            changes: soft cap and sinks.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSegment:
    """A stretch of one sequence to compute."""

    row: int
    """Row of the cache."""
    start: int
    """Position of the first token; everything before it is in the cache."""
    ids: Sequence[int]
    """Tokens to compute; keys of images below 0."""
    images: PromptImages | None = None
    """Images of the whole prompt; None for text alone."""

    def sees(self) -> torch.Tensor:
        """[L] Last position that each token attends to, none of them behind the segment."""
        end = self.start + len(self.ids)
        if self.images is None:
            return torch.arange(self.start, end)
        return torch.from_numpy(self.images.sees[self.start : end])

    @property
    def looks_ahead(self) -> bool:
        """True if any token attends to one behind it."""
        if self.images is None:
            return False
        own = np.arange(self.start, self.start + len(self.ids))
        return bool((self.images.sees[own] > own).any())

    def first_part(self, most: int) -> int:
        """Tokens that may be computed before the others: up to `most`, or one longer image."""
        if self.images is None or len(self.ids) <= most:
            return min(most, len(self.ids))
        end = self.images.cut(self.start + most)
        if end <= self.start:
            end = int(self.images.sees[self.start]) + 1
        return end - self.start

    def part(self, start: int, end: int) -> CacheSegment:
        """Some of its tokens, counted from its first."""
        return replace(self, start=self.start + start, ids=self.ids[start:end])


class PrefillAttention:
    """Many tokens of a few rows; each segment attends to its own row only."""

    def __init__(self, cache: KvCache, segments: Sequence[CacheSegment]) -> None:
        self._data = cache.data
        self._on_cpu = cache.data.device.type == "cpu"
        at = [p for s in segments for p in range(s.start, s.start + len(s.ids))]
        self.positions = torch.tensor(at, device=cache.data.device)
        self._segments = tuple(segments)
        self._sees = [segment.sees().to(cache.data.device) for segment in segments]
        self._looks_ahead = [segment.looks_ahead for segment in segments]
        self._masks: dict[tuple[int, Window | None], torch.Tensor | None] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        window: Window | None = None,
        changes: ScoreChanges = _NO_CHANGES,
    ) -> torch.Tensor:
        """Attend with a cache; see `CacheAttention.attend`."""
        keys, values = _room(self._data, layer, key, value)
        share, dim = query.shape[1] // key.shape[1], query.shape[3]
        factor = dim**-0.5 if scale is None else scale
        outputs = []
        offset = 0
        for number, segment in enumerate(self._segments):
            row, start, length = segment.row, segment.start, len(segment.ids)
            end = start + length
            keys[row, :, start:end] = key[0, :, offset : offset + length]
            values[row, :, start:end] = value[0, :, offset : offset + length]
            q = query[:, :, offset : offset + length]
            offset += length
            if self._on_cpu:
                q = q[0] * factor
                for first in range(0, length, TILE):
                    sees = self._sees[number][first : first + TILE]
                    chunk = q[:, first : first + TILE]
                    out = _attend_to_row(
                        chunk, keys[row], values[row], start + first, sees, window, changes
                    )
                    outputs.append(out[None])
                continue
            # Repeating a few key heads is much cheaper than a kernel for groups.
            k = keys[row, :, :end].repeat_interleave(share, dim=0)[None]
            v = values[row, :, :end].repeat_interleave(share, dim=0)[None]
            mask = self._mask(number, window, always=not changes.is_plain)
            if mask is not None and not changes.is_plain:
                outputs.append(formed_attention(q, k, v, mask, factor, changes))
                continue
            causal = mask is None and length > 1
            out = scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, scale=scale
            )
            outputs.append(out)
        return torch.cat(outputs, dim=2).transpose(1, 2)

    def _mask(
        self, number: int, window: Window | None, *, always: bool = False
    ) -> torch.Tensor | None:
        """[L, T] for a fused kernel, made once a pass; None where "causal" is enough."""
        segment = self._segments[number]
        start, length = segment.start, len(segment.ids)
        end = start + length
        window = None if window is None or window_size(window) >= end else window
        causal = (start == 0 or length == 1) and not self._looks_ahead[number]
        if window is None and causal and not always:
            return None
        key = number, window
        if key not in self._masks:
            at = torch.arange(end, device=self._data.device)
            self._masks[key] = _visible(at, at[start:], self._sees[number], window)
        return self._masks[key]


def _room(
    data: torch.Tensor, layer: int, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a layer, [R, K, T, D]."""
    keys, values = data[layer].unbind()
    return _own_width(keys, values, key, value)


def _own_width(
    keys: torch.Tensor, values: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """[.., K, T, D] of a layer, which may have fewer heads than others, or narrower ones."""
    heads, width = key.shape[1], value.shape[3]
    if (heads, key.shape[3], width) != (keys.shape[1], keys.shape[3], keys.shape[3]):
        return keys[:, :heads, :, : key.shape[3]], values[:, :heads, :, :width]
    return keys, values


def _visible(
    keys_T: torch.Tensor, queries_L: torch.Tensor, sees_L: torch.Tensor, window: Window | None
) -> torch.Tensor:
    """[L, T] Whether queries at some positions see keys at others, up to the last that they see.

    A window hides keys behind a query, and none ahead of it.
    """
    visible = keys_T <= sees_L[:, None]
    return (
        visible if window is None else visible & (keys_T >= first_seen(queries_L[:, None], window))
    )


def _attend_to_row(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: int,
    sees: torch.Tensor,
    window: Window | None,
    changes: ScoreChanges,
) -> torch.Tensor:
    """Attention [H, L, D] of L tokens of one row, to the bits of `DecodeAttention`.

    Args:
        query: [H, L, D], scaled.
        keys: [K, T, D] of the row, those of the tokens themselves included.
        values: [K, T, D].
        start: position of the first token.
        sees: [L] last position that each token attends to.
        window: as `CacheAttention.attend` takes it.
        changes: likewise.
    """
    (heads, length, dim), kv_heads = query.shape, keys.shape[0]
    cap = changes.softcap
    sinks = None if changes.sinks is None else changes.sinks.view(kv_heads, -1)
    share, end = heads // kv_heads, tiled(int(sees.max()) + 1)
    at = torch.arange(end)
    visible = _visible(at, at[start : start + length], sees, window)
    wide = torch.promote_types(query.dtype, torch.float32)
    mask = torch.zeros(visible.shape, dtype=wide).masked_fill_(~visible, float("-inf"))
    if wide != query.dtype:
        q = query.reshape(kv_heads, share * length, dim)
        mask = mask.repeat(share, 1)[None]
        sunk = None if sinks is None else sinks.repeat_interleave(length, dim=1)
        out = row_attention(q, keys[:, :end], values[:, :end], mask, softcap=cap, sinks_BC=sunk)
        return out.reshape(heads, length, -1)
    outputs = []
    for head in range(kv_heads):
        q = query[head * share : (head + 1) * share].transpose(0, 1)
        k, v = (part[head, :end].expand(length, end, -1) for part in (keys, values))
        sunk = None if sinks is None else sinks[head].expand(length, share)
        out = row_attention(q, k, v, mask[:, None], softcap=cap, sinks_BC=sunk)
        outputs.append(out.transpose(0, 1))
    return torch.cat(outputs)


class DecodeAttention:
    """One token of each of the first `count` rows."""

    def __init__(self, cache: KvCache, count: int) -> None:
        device = cache.data.device
        self._data = cache.data
        self._count = count
        self._on_cpu = device.type == "cpu"
        self._longest = tiled(max(cache.lengths[:count]) + 1)
        # Of all layers at once: a slice costs as much as a small product.
        self._past = cache.data[:, :, :count, :, : self._longest].unbind()
        self._kind = torch.promote_types(cache.data.dtype, torch.float32)
        self._rows_N = torch.arange(count, device=device)
        self.positions = torch.tensor(cache.lengths[:count], device=device)
        self._masks: dict[tuple[Window | None, int], torch.Tensor] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        window: Window | None = None,
        changes: ScoreChanges = _NO_CHANGES,
    ) -> torch.Tensor:
        """Attend with a cache; see `CacheAttention.attend`."""
        k, v = self._past[layer].unbind()
        k, v = _own_width(k, v, key, value)
        k[self._rows_N, :, self.positions] = key[0].transpose(0, 1)
        v[self._rows_N, :, self.positions] = value[0].transpose(0, 1)
        heads, kv_heads, dim = query.shape[1], key.shape[1], query.shape[3]
        # Query heads that share a key head become query positions: no repeated keys, no loop.
        q = query[0].transpose(0, 1).reshape(self._count * kv_heads, heads // kv_heads, dim)
        factor = dim**-0.5 if scale is None else scale
        if window is not None and window_size(window) >= self._longest:
            window = None
        # A CPU computes the key heads of a row one by one.
        mask = self._mask(window, kv_heads if self._on_cpu else 1)
        sinks = None if changes.sinks is None else changes.sinks.view(1, kv_heads, -1)
        if self._on_cpu:
            sunk = None if sinks is None else sinks.expand(self._count, -1, -1).flatten(0, 1)
            out = row_attention(
                q * factor,
                k.flatten(0, 1),
                v.flatten(0, 1),
                mask,
                softcap=changes.softcap,
                sinks_BC=sunk,
            )
        else:
            # Plain products: a fused kernel gains little for one query, and may be planned for
            # every length. Scores are formed in float32, as a fused kernel does.
            kind = self._kind
            q = q.unflatten(0, (self._count, kv_heads))
            scores = factor * (q.to(kind) @ k.transpose(2, 3).to(kind))
            if changes.softcap is not None:
                scores = torch.tanh(scores / changes.softcap) * changes.softcap
            scores = scores + mask[:, None]
            if sinks is not None:
                sunk = sinks.to(kind).expand(self._count, -1, -1)[..., None]
                scores = torch.cat([scores, sunk], dim=-1)
            out = torch.softmax(scores, dim=-1)[..., : self._longest].to(q.dtype) @ v
        return out.reshape(1, self._count, heads, -1)

    def _mask(self, window: Window | None, repeats: int) -> torch.Tensor:
        """[N * repeats, 1, T] what is added to scores, made once a pass."""
        made = window, repeats
        if made not in self._masks:
            device = self._data.device
            at = torch.arange(self._longest, device=device)
            visible = _visible(at, self.positions, self.positions, window)
            mask = torch.zeros(visible.shape, dtype=self._kind, device=device)
            mask.masked_fill_(~visible, float("-inf"))
            self._masks[made] = mask.repeat_interleave(repeats, dim=0)[:, None]
        return self._masks[made]


class PaddedAttention:
    """The tokens of a part, and behind them some of no row, whose results nobody reads."""

    def __init__(self, part: CacheAttention, missing: int) -> None:
        self._part, self._missing = part, missing
        self._count = len(part.positions)
        self.positions = pad(part.positions, (0, missing))

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        window: Window | None = None,
        changes: ScoreChanges = _NO_CHANGES,
    ) -> torch.Tensor:
        """Attend with a cache; see `CacheAttention.attend`."""
        query, key, value = (kept[:, :, : self._count] for kept in (query, key, value))
        out = self._part.attend(layer, query, key, value, scale, window, changes)
        if self._count == 1:
            return out.expand(-1, 1 + self._missing, -1, -1)
        return pad(out, (0, 0, 0, 0, 0, self._missing))


class MixedAttention:
    """Decoded tokens and segments side by side."""

    def __init__(self, parts: Sequence[DecodeAttention | PrefillAttention]) -> None:
        self._parts = parts
        self.positions = torch.cat([part.positions for part in parts])
        self._sizes = [len(part.positions) for part in parts]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        window: Window | None = None,
        changes: ScoreChanges = _NO_CHANGES,
    ) -> torch.Tensor:
        """Attend with a cache; see `CacheAttention.attend`."""
        outputs = [
            part.attend(layer, q, k, v, scale, window, changes)
            for part, q, k, v in zip(
                self._parts,
                query.split(self._sizes, dim=2),
                key.split(self._sizes, dim=2),
                value.split(self._sizes, dim=2),
                strict=True,
            )
        ]
        return torch.cat(outputs, dim=1)
