"""Running a Hugging Face model over our own key-value rows.

The model file is not touched: an attention function registered with `transformers` receives the
queries, keys and values of each layer and does the rest. Sequences are packed side by side into
one row of tokens, so linear layers never see padding.

Legend: `_N` active rows, `_V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import AttentionInterface

from agentrl.errors import ConfigError
from agentrl.models.attention_layers import layer_window, unsupported
from agentrl.models.fused_attention import without_plans
from agentrl.models.lm_head import float32_logits, has_float32_head, is_narrow
from agentrl.models.vision.embed import PlacedFeatures, embeddings, language_model
from agentrl.models.vision.reader import VisionReader, reader_of
from agentrl.serving.embedded.cache_attention import (
    CacheAttention,
    CacheSegment,
    DecodeAttention,
    MixedAttention,
    PaddingAttention,
    PrefillAttention,
)
from agentrl.serving.embedded.kv_cache import KvCache
from agentrl.serving.embedded.row_attention import FEW

ATTENTION = "agentrl_kv_rows"
_VECTOR = 64
"""Numbers that torch takes at once, in the narrowest dtype."""
_ROWS = (FEW, 8, 16, 32)
"""Rows that are tried, smallest first, for the bits of a product of `_MANY`."""
_MANY = 64
"""Rows of a product whose kernel is that of all larger ones."""


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    kv_step: CacheAttention,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    if used := unsupported(kwargs):
        raise ConfigError(
            f"{type(module).__name__} uses {', '.join(used)}, which attention over the rows of the "
            "embedded engine's cache does not implement; use serving.engine: vllm"
        )
    window = layer_window(module, sliding_window)
    return kv_step.attend(module.layer_idx, query, key, value, scaling, window), None


AttentionInterface.register(ATTENTION, _attention)


class RowModel:
    """A causal language model that reads and writes a `KvCache`."""

    def __init__(self, model: Any) -> None:
        """Wrap `model`; its weights are used where they are.

        Raises:
            ConfigError: an architecture whose attention or output this engine does not reproduce.
        """
        check_supported(model)
        self.model = model
        self._reader = reader_of(model)
        self._decoder = model.base_model if self._reader is None else language_model(model)
        # Not the whole of a model that sees: its tower attends as it was made to.
        self._attending = model if self._reader is None else self._decoder
        self._head = model.get_output_embeddings()
        self.config = config = model.config.get_text_config()
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
        without_plans(self.device)
        self._unit = _token_unit(self.device, self._widths())
        self._least = least_rows(model) if self.device.type == "cpu" else 1

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Inside, passes may be tried; the model's own choice of attention comes back after."""
        before = self._attending.config._attn_implementation
        try:
            with torch.no_grad():
                yield
        finally:
            self._attending.config._attn_implementation = before

    def _widths(self) -> tuple[int, int]:
        config = self.config
        inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        return self.head_dim, inner

    def prefill(self, cache: KvCache, segments: Sequence[CacheSegment]) -> torch.Tensor:
        """Compute segments and return the logits after each one's last token, [segments, V]."""
        return self.step(cache, (), segments)

    def decode(self, cache: KvCache, ids_N: Sequence[int]) -> torch.Tensor:
        """Compute one token per active row and return the logits after it, [N, V]."""
        return self.step(cache, ids_N, ())

    def step(
        self,
        cache: KvCache,
        ids_N: Sequence[int],
        segments: Sequence[CacheSegment],
        offsets_N: Sequence[int] = (),
    ) -> torch.Tensor:
        """Compute the next token of the first N rows, and segments of others, in one pass.

        A segment beside the decoded tokens costs what its own tokens cost; in a pass of its own
        it would cost as much as decoding a whole batch again.

        Args:
            cache: holds the past of all of them, and gets the new keys and values.
            ids_N: the last token of each of the rows `[0, N)`.
            segments: of other rows.
            offsets_N: rotary position of each of `ids_N`, less its position in the row; none
                where no row has images.

        Returns:
            [N + segments, V] logits: after each of `ids_N`, then after each segment's last token.
        """
        parts: list[DecodeAttention | PrefillAttention | PaddingAttention] = []
        if ids_N:
            parts.append(DecodeAttention(cache, len(ids_N)))
        if segments:
            parts.append(PrefillAttention(cache, segments))
        ids = [*ids_N, *(token for segment in segments for token in segment.ids)]
        padded = max(len(ids), self._least)
        if missing := padded + -padded % self._unit - len(ids):
            parts.append(PaddingAttention(missing))
            ids += [0] * missing
        positions = torch.cat([part.positions for part in parts])
        attention = parts[0] if len(parts) == 1 else MixedAttention(parts)
        if self._reader is None:
            hidden = self._run(ids, positions, attention)
        else:
            hidden = self._run_seeing(
                self._reader, ids, positions, attention, offsets_N or [0] * len(ids_N), segments
            )
        lengths = [1] * len(ids_N) + [len(segment.ids) for segment in segments]
        last = torch.tensor(lengths, device=self.device).cumsum(0) - 1
        missing = max(0, self._least - len(last))
        return self._logits(hidden[pad(last, (0, missing))])[: len(last)]

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if has_float32_head(self.model) and is_narrow(self._head.weight):
            return float32_logits(hidden, self._head)
        return self._head(hidden)

    def _run(
        self, ids: Sequence[int], positions: torch.Tensor, step: CacheAttention
    ) -> torch.Tensor:
        self._attending.config._attn_implementation = ATTENTION
        output = self._decoder(
            input_ids=torch.tensor(ids, device=self.device)[None],
            position_ids=positions[None],
            use_cache=False,
            kv_step=step,
        )
        return output.last_hidden_state[0]

    def _run_seeing(
        self,
        reader: VisionReader,
        ids: Sequence[int],
        positions: torch.Tensor,
        step: CacheAttention,
        offsets_N: Sequence[int],
        segments: Sequence[CacheSegment],
    ) -> torch.Tensor:
        """As `_run`, with the features of images in the place of their keys."""
        rotary = positions.expand(3, -1).clone()
        rotary[:, : len(offsets_N)] += torch.tensor(
            list(offsets_N), dtype=torch.long, device=self.device
        )
        placed: list[PlacedFeatures] = []
        at = len(offsets_N)
        for segment in segments:
            count = len(segment.ids)
            if segment.images is not None:
                start, end = segment.start, segment.start + count
                own = segment.images.positions[:, start:end]
                rotary[:, at : at + count] = torch.from_numpy(own)
                placed += [
                    replace(image, positions=image.positions + at)
                    for image in segment.images.within(start, end)
                ]
            at += count
        real = torch.tensor([reader.placeholder_id if token < 0 else token for token in ids])
        self._attending.config._attn_implementation = ATTENTION
        output = self._decoder(
            **embeddings(self.model, reader, real.to(self.device), placed),
            position_ids=rotary[:, None] if reader.family.multi_axis_rope else rotary[:1],
            use_cache=False,
            kv_step=step,
        )
        return output.last_hidden_state[0]


def _token_unit(device: torch.device, widths: Sequence[int]) -> int:
    """Tokens of a pass are padded to a multiple of this; a GPU computes them as they come.

    As many as fill whole vectors of the processor: sines and exponentials of a remainder are
    computed otherwise, so they would depend on how many tokens stand before them.

    Args:
        device: of the model.
        widths: numbers a token, of which the model takes sines or exponentials.
    """
    if device.type != "cpu":
        return 1
    return _VECTOR // FEW if any(width % _VECTOR for width in widths) else FEW


def least_rows(model: Any) -> int:
    """Fewest rows of the model's products that have the bits of larger ones, on this processor.

    A library takes other kernels for few rows, and how few they are depends on the processor and
    on the shape: MKL in float32 was seen to change at 4, 6 and 16. So each shape of the model is
    tried once. Returns a power of two from `FEW` to `_MANY`.
    """
    head = model.get_output_embeddings()
    wide_head = has_float32_head(model) and is_narrow(head.weight)
    shapes: dict[tuple[torch.Size, bool], torch.Tensor] = {}
    for layer in (*model.modules(), head):
        if isinstance(layer, torch.nn.Linear):
            widened = wide_head and layer is head
            shapes.setdefault((layer.weight.shape, widened), layer.weight.detach())
    return max(
        (
            _least_rows_of(weight.float() if widened else weight)
            for (_, widened), weight in shapes.items()
        ),
        default=FEW,
    )


def _least_rows_of(weight: torch.Tensor) -> int:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(_MANY, weight.shape[1], generator=draw).to(weight.dtype)
    whole = torch.nn.functional.linear(rows, weight)
    for count in _ROWS:
        if torch.equal(torch.nn.functional.linear(rows[:count], weight), whole[:count]):
            return count
    return _MANY


def check_supported(model: Any) -> None:
    """Refuse architectures whose numbers this engine would get wrong.

    Raises:
        ConfigError: layers that look back otherwise than over all tokens or a window of them, or
            no plain linear head.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    odd = sorted(kinds - {"full_attention", "sliding_attention"})
    scaled = [
        name
        for name in ("final_logit_softcapping", "logits_scaling", "logit_scale")
        if getattr(config, name, None) not in (None, 1, 1.0)
    ]
    head = model.get_output_embeddings()
    if getattr(model, "lm_head", head) is not head:
        odd.append("a head of several layers")
    try:
        getattr(config, "head_dim", None)
    except RuntimeError:  # `transformers` has no one answer
        odd.append("layers with heads of different sizes")
    if odd or scaled or head is None:
        raise ConfigError(
            "the embedded engine runs decoders with full or sliding attention and a plain linear "
            f"head; "
            f"{type(model).__name__} has {', '.join(odd + scaled) or 'no output embeddings'}"
        )
