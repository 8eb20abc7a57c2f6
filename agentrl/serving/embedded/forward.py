"""Running a Hugging Face model over our own key-value rows.

The model file is not touched: an attention function registered with `transformers` receives the
queries, keys and values of each layer and does the rest. Sequences are packed side by side into
one row of tokens, so linear layers never see padding.

Legend: `_N` active rows, `_V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.errors import ConfigError
from agentrl.lm_head import float32_logits, has_float32_head, is_narrow
from agentrl.serving.embedded.kv_cache import KvCache

ATTENTION = "agentrl_kv_rows"


class _Attend(Protocol):
    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
    ) -> torch.Tensor: ...


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    kv_step: _Attend,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    return kv_step.attend(module.layer_idx, query, key, value, scaling), None


AttentionInterface.register(ATTENTION, _attention)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSegment:
    """A stretch of one sequence to compute."""

    row: int
    """Row of the cache."""
    start: int
    """Position of the first token; everything before it is in the cache."""
    ids: Sequence[int]
    """Tokens to compute."""


class _Prefill:
    """Many tokens of a few rows; each segment attends to its own row only."""

    def __init__(self, cache: KvCache, segments: Sequence[CacheSegment]) -> None:
        self._data = cache.data
        at = [p for s in segments for p in range(s.start, s.start + len(s.ids))]
        self.positions = torch.tensor(at, device=cache.data.device)
        self._parts: list[tuple[int, int, int, int, torch.Tensor | None]] = []
        offset = 0
        for segment in segments:
            length, end = len(segment.ids), segment.start + len(segment.ids)
            mask = None
            if segment.start and length > 1:
                mask = torch.ones(length, end, dtype=torch.bool, device=cache.data.device)
                mask = mask.tril(diagonal=segment.start)
            self._parts.append((segment.row, segment.start, offset, length, mask))
            offset += length

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
    ) -> torch.Tensor:
        keys, values = self._data[layer, 0], self._data[layer, 1]
        share = query.shape[1] // key.shape[1]
        outputs = []
        for row, start, offset, length, mask in self._parts:
            end = start + length
            keys[row, :, start:end] = key[0, :, offset : offset + length]
            values[row, :, start:end] = value[0, :, offset : offset + length]
            # Repeating a few key heads is much cheaper than the grouped CPU kernel.
            k = keys[row, :, :end].repeat_interleave(share, dim=0)[None]
            v = values[row, :, :end].repeat_interleave(share, dim=0)[None]
            q = query[:, :, offset : offset + length]
            causal = start == 0 and length > 1
            out = scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, scale=scale
            )
            outputs.append(out)
        return torch.cat(outputs, dim=2).transpose(1, 2)


class _Decode:
    """One token of each of the first `count` rows."""

    def __init__(self, cache: KvCache, count: int) -> None:
        device = cache.data.device
        self._data = cache.data
        self._count = count
        self._longest = max(cache.lengths[:count]) + 1
        self._rows_N = torch.arange(count, device=device)
        self.positions = torch.tensor(cache.lengths[:count], device=device)
        visible = torch.arange(self._longest, device=device)[None] <= self.positions[:, None]
        self._on_cpu = device.type == "cpu"
        kind = cache.data.dtype
        if self._on_cpu:
            kind = torch.promote_types(kind, torch.float32)
        mask = torch.zeros(visible.shape, dtype=kind, device=device)
        self._mask = mask.masked_fill_(~visible, float("-inf"))[:, None, None, :]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
    ) -> torch.Tensor:
        keys, values = self._data[layer, 0], self._data[layer, 1]
        keys[self._rows_N, :, self.positions] = key[0].transpose(0, 1)
        values[self._rows_N, :, self.positions] = value[0].transpose(0, 1)
        heads, kv_heads, dim = query.shape[1], key.shape[1], query.shape[3]
        # Query heads that share a key head become query positions: no repeated keys, no loop.
        q = query[0].transpose(0, 1).reshape(self._count, kv_heads, heads // kv_heads, dim)
        if self._on_cpu:
            out = self._products(q, keys, values, dim**-0.5 if scale is None else scale)
        else:
            out = scaled_dot_product_attention(
                q,
                keys[: self._count, :, : self._longest],
                values[: self._count, :, : self._longest],
                attn_mask=self._mask,
                scale=scale,
            )
        return out.reshape(1, self._count, heads, dim)

    def _products(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention [N, K, G, D] of a few queries a row, as the trainer's CPU path writes it.

        torch's fused kernel for a CPU is made for many queries and takes twice as long. Keys stand
        to the left of their product, which is 2.5 times as fast as the other way round.

        Args:
            query: [N, K, G, D], G query heads share each of the K key heads.
            keys: [R, K, T, D] all rows of a layer.
            values: [R, K, T, D].
            scale: factor on the scores.
        """
        count, kv_heads, share, dim = query.shape
        rows = count * kv_heads
        k, v = (part.view(-1, *part.shape[2:])[:rows, : self._longest] for part in (keys, values))
        queries = (query * scale).reshape(rows, share, dim)
        scores = torch.bmm(k, queries.transpose(1, 2)).transpose(1, 2)
        wide = scores.to(self._mask.dtype, memory_format=torch.contiguous_format)
        masked = wide.view(count, kv_heads, share, -1) + self._mask
        probs = torch.softmax(masked, dim=-1).to(query.dtype)
        return torch.bmm(probs.view(rows, share, -1), v)


class _Mixed:
    """Decoded tokens and segments side by side."""

    def __init__(self, parts: Sequence[_Decode | _Prefill]) -> None:
        self._parts = parts
        self._sizes = [len(part.positions) for part in parts]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
    ) -> torch.Tensor:
        outputs = [
            part.attend(layer, q, k, v, scale)
            for part, q, k, v in zip(
                self._parts,
                query.split(self._sizes, dim=2),
                key.split(self._sizes, dim=2),
                value.split(self._sizes, dim=2),
                strict=True,
            )
        ]
        return torch.cat(outputs, dim=1)


class RowModel:
    """A causal language model that reads and writes a `KvCache`."""

    def __init__(self, model: Any) -> None:
        """Wrap `model`; its weights are used where they are.

        Raises:
            ConfigError: an architecture whose attention or output this engine does not reproduce.
        """
        check_supported(model)
        self.model = model
        self._decoder = model.base_model
        self._head = model.get_output_embeddings()
        config = model.config
        self.num_layers = config.num_hidden_layers
        self.num_kv_heads = getattr(config, "num_key_value_heads", None) or (
            config.num_attention_heads
        )
        self.head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self.vocab_size = self._head.weight.shape[0]
        self.dtype = self._head.weight.dtype
        self.device = self._head.weight.device

    def prefill(self, cache: KvCache, segments: Sequence[CacheSegment]) -> torch.Tensor:
        """Compute segments and return the logits after each one's last token, [segments, V]."""
        return self.step(cache, (), segments)

    def decode(self, cache: KvCache, ids_N: Sequence[int]) -> torch.Tensor:
        """Compute one token per active row and return the logits after it, [N, V]."""
        return self.step(cache, ids_N, ())

    def step(
        self, cache: KvCache, ids_N: Sequence[int], segments: Sequence[CacheSegment]
    ) -> torch.Tensor:
        """Compute the next token of the first N rows, and segments of others, in one pass.

        A segment beside the decoded tokens costs what its own tokens cost; in a pass of its own
        it would cost as much as decoding a whole batch again.

        Args:
            cache: holds the past of all of them, and gets the new keys and values.
            ids_N: the last token of each of the rows `[0, N)`.
            segments: of other rows.

        Returns:
            [N + segments, V] logits: after each of `ids_N`, then after each segment's last token.
        """
        parts = []
        if ids_N:
            parts.append(_Decode(cache, len(ids_N)))
        if segments:
            parts.append(_Prefill(cache, segments))
        ids = [*ids_N, *(token for segment in segments for token in segment.ids)]
        positions = torch.cat([part.positions for part in parts])
        hidden = self._run(ids, positions, parts[0] if len(parts) == 1 else _Mixed(parts))
        lengths = [1] * len(ids_N) + [len(segment.ids) for segment in segments]
        return self._logits(hidden[torch.tensor(lengths, device=self.device).cumsum(0) - 1])

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if has_float32_head(self.model) and is_narrow(self._head.weight):
            return float32_logits(hidden, self._head)
        return self._head(hidden)

    def _run(self, ids: Sequence[int], positions: torch.Tensor, step: _Attend) -> torch.Tensor:
        self.model.config._attn_implementation = ATTENTION
        output = self._decoder(
            input_ids=torch.tensor(ids, device=self.device)[None],
            position_ids=positions[None],
            use_cache=False,
            kv_step=step,
        )
        return output.last_hidden_state[0]


def check_supported(model: Any) -> None:
    """Refuse architectures whose numbers this engine would get wrong.

    Raises:
        ConfigError: not a plain decoder with full attention and a linear head.
    """
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    odd = [kind for kind in kinds if kind != "full_attention"]
    scaled = [
        name
        for name in ("final_logit_softcapping", "logits_scaling", "logit_scale")
        if getattr(config, name, None) not in (None, 1, 1.0)
    ]
    if odd or scaled or model.get_output_embeddings() is None:
        raise ConfigError(
            f"the embedded engine runs decoders with full attention and a plain linear head; "
            f"{type(model).__name__} has {', '.join(odd + scaled) or 'no output embeddings'}"
        )
