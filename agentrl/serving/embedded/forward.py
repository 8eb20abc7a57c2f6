"""Running a Hugging Face model over our own key-value rows.

The model file is not touched: an attention function registered with `transformers` receives the
queries, keys and values of each layer and does the rest. Sequences are packed side by side into
one row of tokens, so linear layers never see padding.

Legend: `_N` active rows, `_V` vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import AttentionInterface

from agentrl.errors import ConfigError
from agentrl.models.attention_layers import (
    CarryingMask,
    ScoreChanges,
    Window,
    at_positions,
    layer_window,
    reach_own_attention,
    unsupported,
)
from agentrl.models.bits import FourBitLinear
from agentrl.models.fused_attention import without_plans
from agentrl.models.lm_head import float32_logits, has_float32_head, is_narrow
from agentrl.models.logit_map import body_of, logit_map
from agentrl.models.vision.embed import PlacedFeatures, embeddings, language_model
from agentrl.models.vision.reader import VisionReader, reader_of
from agentrl.serving.embedded.cache_attention import (
    CacheAttention,
    CacheSegment,
    DecodeAttention,
    MixedAttention,
    PaddedAttention,
    PrefillAttention,
)
from agentrl.serving.embedded.kv_cache import KvCache
from agentrl.serving.embedded.row_attention import FEW

ATTENTION = "agentrl_kv_rows"
_WAYS = ((ATTENTION, "kv_step"), (ATTENTION, "attention_mask"), ("sdpa", "attention_mask"))
"""What `config._attn_implementation` is, and the argument that brings a step along, in the order of
trial; the last is for layers that call torch's function by themselves."""
_VECTOR = 64
"""Numbers that torch takes at once, in the narrowest dtype."""
_ROWS = (2, FEW, 8, 16, 32)
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
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    kv_step: CacheAttention | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    layer: Any = getattr(module, "layer_idx", None)
    if isinstance(attention_mask, CarryingMask):
        layer = attention_mask.met if module is None else layer
        kv_step, attention_mask = attention_mask.content, None
    used = unsupported(kwargs) + ["attention_mask"] * (attention_mask is not None)
    if used or kv_step is None:
        raise ConfigError(
            f"{type(module).__name__} uses {', '.join(used) or 'no keyword arguments'}, which "
            "attention over the rows of the embedded engine's cache does not implement; use "
            "serving.engine: vllm"
        )
    if getattr(module, "attn_temperature_tuning", False):
        query = at_positions(module, query, kv_step.positions)
    window = layer_window(module, sliding_window)
    changes = ScoreChanges(softcap=softcap, sinks=s_aux)
    return kv_step.attend(layer, query, key, value, scaling, window, changes), None


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
        self._decoder = body_of(model) if self._reader is None else language_model(model)
        # Not the whole of a model that sees: its tower attends as it was made to.
        self._attending = model if self._reader is None else self._decoder
        self._head, self._map = model.get_output_embeddings(), logit_map(model)
        self.config = model.config.get_text_config()
        self.vocab_size = self._head.weight.shape[0]
        self.dtype = self._head.weight.dtype
        self.device = self._head.weight.device
        without_plans(self.device)
        self._handed = _WAYS[0]
        reach_own_attention(model)
        shapes = self._tried()
        self.num_layers = len(shapes)
        self.num_kv_heads = max(shape[0] for shape in shapes.values())
        self.head_dim = max(max(shape[1:]) for shape in shapes.values())
        self._unit = _token_unit(self.device, self._widths(shapes))
        self._least = least_rows(model) if self.device.type == "cpu" else 1

    def retyped(self) -> RowModel:
        """The same model after its weights were given another dtype; nothing is tried again.

        What was found of the rows of its products is that of the first dtype.
        """
        made = copy.copy(self)
        made.dtype = self._head.weight.dtype
        return made

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Inside, passes may be tried; the model's own choice of attention comes back after."""
        own = self._attending.config._attn_implementation
        try:
            with torch.no_grad():
                yield
        finally:
            self._attending.config._attn_implementation = own

    def _tried(self) -> dict[int, tuple[int, int, int]]:
        """Key heads of each layer, and width of its keys and values, from a pass of a few tokens.

        Raises:
            ConfigError: layers that do not look back through our attention once each. The first
                request would find it, too late.
        """
        shapes = _LayerShapes(FEW, self.device)
        why = "an attention of their own"
        with self.trying():
            for self._handed in _WAYS:
                shapes.found.clear()
                try:
                    self._logits(self._run([1] * FEW, shapes.positions, shapes))
                    if shapes.found:
                        break
                except Exception as error:  # any code of any model; refused below
                    why = str(error) if isinstance(error, ConfigError) else why
                    shapes.found.clear()
        expected = self.config.num_hidden_layers
        if set(shapes.found) != set(range(expected)):
            raise ConfigError(
                f"the embedded engine cannot decode {type(self.model).__name__}: "
                f"{len(shapes.found)} of its {expected} layers look back once, through "
                f"transformers' AttentionInterface, the others have {why}; use serving.engine: vllm"
            )
        return shapes.found

    def _widths(self, shapes: dict[int, tuple[int, int, int]]) -> set[int]:
        config = self.config
        inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        inside = set(inner) if isinstance(inner, list | tuple) else {inner}
        return inside | {width for shape in shapes.values() for width in shape[1:]}

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
        parts: list[DecodeAttention | PrefillAttention] = []
        if ids_N:
            parts.append(DecodeAttention(cache, len(ids_N)))
        if segments:
            parts.append(PrefillAttention(cache, segments))
        ids = [*ids_N, *(token for segment in segments for token in segment.ids)]
        attention: CacheAttention = parts[0] if len(parts) == 1 else MixedAttention(parts)
        if missing := self._padded(len(ids), self._unit) - len(ids):
            attention = PaddedAttention(attention, missing)
            ids += [0] * missing
        positions = attention.positions
        if self._reader is None:
            hidden = self._run(ids, positions, attention)
        else:
            hidden = self._run_seeing(
                self._reader, ids, positions, attention, offsets_N or [0] * len(ids_N), segments
            )
        lengths = [1] * len(ids_N) + [len(segment.ids) for segment in segments]
        last = torch.tensor(lengths, device=self.device).cumsum(0) - 1
        missing = self._padded(len(last), min(self._unit, FEW)) - len(last)
        return self._logits(hidden[pad(last, (0, missing))])[: len(last)]

    def _padded(self, count: int, unit: int) -> int:
        """Rows that are computed for `count` of them, so that company changes no bit of any."""
        if count <= self._least < FEW and unit <= FEW:
            return self._least
        padded = max(count, self._least)
        return padded + -padded % unit

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self._map.into_head(hidden)
        if has_float32_head(self.model) and is_narrow(self._head.weight):
            return self._map.apply_(float32_logits(hidden, self._head))
        logits = self._head(hidden)
        if self._map.changes_logits:
            # In float32 as the trainer: its softmax begins with the head's numbers.
            wide = torch.promote_types(logits.dtype, torch.float32)
            logits = self._map.apply_(logits.to(wide))
        return logits

    def _run(
        self, ids: Sequence[int], positions: torch.Tensor, step: CacheAttention
    ) -> torch.Tensor:
        name, argument = self._handed
        self._attending.config._attn_implementation = name
        carried = argument == "attention_mask"
        output = self._decoder(
            input_ids=torch.tensor(ids, device=self.device)[None],
            position_ids=positions[None],
            use_cache=False,
            **{argument: CarryingMask.of(step, self.device, ATTENTION) if carried else step},
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


class _LayerShapes:
    """Attention of no tokens that notes what each layer gives it."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.positions = torch.arange(count, device=device)
        self.found: dict[int, tuple[int, int, int]] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        window: Window | None = None,
        changes: ScoreChanges | None = None,
    ) -> torch.Tensor:
        """Return zeros; see `CacheAttention.attend`."""
        if layer in self.found:
            raise ConfigError(f"layers that attend more than once (layer {layer} does)")
        self.found[layer] = key.shape[1], key.shape[3], value.shape[3]
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def _token_unit(device: torch.device, widths: Collection[int]) -> int:
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
    tried. Returns a power of two from 2 to `_MANY`.
    """
    head = model.get_output_embeddings()
    wide_head = has_float32_head(model) and is_narrow(head.weight)
    shapes: dict[tuple[torch.Size, bool], torch.Tensor] = {}
    for layer in (*model.modules(), head):
        if isinstance(layer, FourBitLinear):
            if (layer.shape, False) not in shapes:
                shapes[layer.shape, False] = layer.whole()
        elif isinstance(layer, torch.nn.Linear):
            widened = wide_head and layer is head
            shapes.setdefault((layer.weight.shape, widened), layer.weight.detach())
    return max(
        (_least_rows_of(weight, wide) for (_, wide), weight in shapes.items()),
        default=FEW,
    )


def _least_rows_of(weight: torch.Tensor, wide: bool) -> int:
    return next((count for count in _ROWS if _same_bits(weight, count, wide=wide)), _MANY)


def _same_bits(weight: torch.Tensor, count: int, *, wide: bool = False) -> bool:
    """True if products of so many rows have the bits that the rows have among `_MANY`.

    Sums that cancel leave only what was rounded on the way, which a narrow result hides otherwise:
    of a bfloat16 product, another order of adding changes one number in 5000.

    Args:
        weight: its shape and dtype are tried, and some of its numbers.
        count: of rows.
        wide: whether the product is that of a float32 head.
    """
    draw = torch.Generator().manual_seed(0)
    width, half = weight.shape[1], weight.shape[1] // 2
    rows = torch.randn(_MANY, width, generator=draw).to(weight.dtype)
    rows[:, half : 2 * half] = -rows[:, :half]
    layer = torch.nn.Linear(width, weight.shape[0], bias=False, device="meta")
    layer.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    layer.weight[:, half : 2 * half] = weight[:, :half]

    def product(part: torch.Tensor) -> torch.Tensor:
        return float32_logits(part, layer) if wide else layer(part)

    with torch.no_grad():
        parts = [product(part) for part in rows.split(count)]
        return torch.equal(torch.cat(parts), product(rows))


def check_supported(model: Any) -> None:
    """Refuse architectures whose numbers this engine would get wrong.

    Raises:
        ConfigError: layers that look back otherwise than over all tokens or a window of them, or
            no linear head.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    odd = sorted(kinds - {"full_attention", "sliding_attention", "chunked_attention"})
    head = model.get_output_embeddings()
    direct = any(part is head for part in model.children())
    if head is not None and not (direct and getattr(model, "lm_head", head) is head):
        odd.append("a head of several layers")
    if odd or head is None:
        raise ConfigError(
            "the embedded engine runs decoders with full, sliding or chunked attention and a "
            f"linear head; {type(model).__name__} has {', '.join(odd) or 'no output embeddings'}"
        )
