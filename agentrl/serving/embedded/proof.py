"""Compares the engine's decoding with the model's own forward pass, before it serves a request.

A few rows are decoded as `Batch` does it, with tokens that are known beforehand: a prompt while
others are decoded, a prefix copied from another row, then token after token from the cache.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.models.own_forward import (
    NARROW,
    OwnRows,
    hides_nothing,
    image_row,
    narrowed,
    own_numbers,
    probe_ids,
)
from agentrl.models.proof import ModelProof, gaps, judged, proven, refused_by_name, tolerated
from agentrl.models.vision.reader import reader_of
from agentrl.serving.embedded.cache_attention import CacheSegment
from agentrl.serving.embedded.forward import RowModel
from agentrl.serving.embedded.kv_cache import KvCache
from agentrl.serving.embedded.pictures import ImageNumbers, PromptImages
from agentrl.types import ImageSpan

_WHO = "serving.engine is embedded"
_INSTEAD = "Nothing was sampled; set serving.engine: vllm, or take a model of another family"
_PASSES = 5
"""Passes of a proof: one begins each row, and the first row is decoded in all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownRow:
    """A row whose tokens are known, and its prompt."""

    ids: np.ndarray
    """[L] Tokens as the model reads them."""
    prompt: int
    """Tokens of the prompt."""
    images: PromptImages | None = None
    """Images of the prompt."""

    @property
    def keys(self) -> np.ndarray:
        """Tokens of the prompt as the cache compares them."""
        return self.ids[: self.prompt] if self.images is None else self.images.keys


def open_rows(model: Any) -> RowModel:
    """A model that reads and writes rows of a cache.

    Args:
        model: a causal language model of `transformers`.

    Raises:
        ConfigError: as `RowModel`, or a config without what every family of decoders has there.
    """
    with refused_by_name(model, who=_WHO, form=lambda: "from a cache", instead=_INSTEAD):
        return RowModel(model)


def prove_decoding(model: RowModel) -> ModelProof:
    """Compare what a model decodes with its own forward pass.

    Args:
        model: serves no request yet.

    Raises:
        ConfigError: its numbers differ by more than rounding explains, or cannot be computed.
    """
    whole = model.model

    return proven(whole, lambda again: _judge(model.retyped() if again else model), who=_WHO)


def _judge(model: RowModel) -> ModelProof:
    began, found, tolerances = time.perf_counter(), dict[str, Tensor](), [0.0]
    whole, form = model.model, "decoded"
    with (
        refused_by_name(whole, who=_WHO, form=lambda: form, instead=_INSTEAD),
        model.trying(),
    ):
        ids = probe_ids(whole, rows=3).astype(np.int32)
        length = ids.shape[1]
        rows = [
            _KnownRow(ids=row, prompt=max(1, length - _PASSES + at)) for at, row in enumerate(ids)
        ]
        windows = (None, NARROW) if hides_nothing(whole, length) else (None,)
        for window in windows:
            form = "decoded" if window is None else f"decoded with a window of {window}"
            with narrowed(whole, window):
                found[form] = _compare(model, rows, tolerances)
        if (reader := reader_of(whole)) is not None:
            form = "decoded with an image"
            seeing, span = image_row(reader, ids[0], config=whole.config)
            prompt = len(seeing) - _PASSES + 1
            read = ImageNumbers(reader).read(seeing[:prompt].astype(np.int32), (span,), "proof")
            row = _KnownRow(ids=seeing.astype(np.int32), prompt=prompt, images=read)
            found[form] = _compare(model, [row], tolerances, image=span)
    return judged(whole, found, tolerance=max(tolerances), who=_WHO, instead=_INSTEAD, began=began)


def _compare(
    model: RowModel,
    rows: Sequence[_KnownRow],
    tolerances: list[float],
    *,
    image: ImageSpan | None = None,
) -> Tensor:
    """Difference at each decoded token; what rounding explains is added to `tolerances`."""
    ids_NL = torch.tensor(np.stack([row.ids for row in rows]), device=model.device).long()
    own = own_numbers(model.model, OwnRows(ids_NL=ids_NL, image=image))
    shaken = own_numbers(model.model, OwnRows(ids_NL=ids_NL[:1], image=image, shaken=True))
    tolerances.append(tolerated(own[0], shaken[0], model.dtype))
    want = torch.cat([of[row.prompt - 1 :] for of, row in zip(own, rows, strict=True)])
    return gaps(_decoded(model, rows), want)


def _decoded(model: RowModel, rows: Sequence[_KnownRow]) -> Tensor:
    """[tokens] Log-probability of each token behind the prompts, row by row."""
    longest = max(len(row.ids) for row in rows)
    cache = KvCache(
        num_layers=model.num_layers,
        num_rows=len(rows),
        num_heads=model.num_kv_heads,
        max_tokens=longest,
        head_dim=model.head_dim,
        dtype=model.dtype,
        device=model.device,
    )
    found: list[list[Tensor]] = [[] for _ in rows]
    for step in range(longest - rows[0].prompt):
        decoding = rows[:step]
        ids = [int(row.ids[cache.lengths[at]]) for at, row in enumerate(decoding)]
        offsets = [0 if row.images is None else row.images.offset for row in decoding]
        segments: list[CacheSegment] = []
        if step < len(rows):
            row, index = rows[step], cache.claim(str(step))
            assert index == step, index
            start = cache.adopt_prefix(step, row.keys)
            if row.images is not None:
                start = cache.lengths[step] = row.images.cut(start)
            rest = row.keys[start:].tolist()
            segments.append(CacheSegment(row=step, start=start, ids=rest, images=row.images))
        logits = model.step(cache, ids, segments, offsets)
        for at, token in enumerate(ids):
            cache.append_ids(at, (token,))
        for segment in segments:
            cache.append_ids(segment.row, segment.ids)
        kind = torch.promote_types(logits.dtype, torch.float32)
        for at, row in enumerate(rows[: step + 1]):
            following = int(row.ids[cache.lengths[at]])
            found[at].append(torch.log_softmax(logits[at].to(kind), -1)[following])
    return torch.stack([number for row in found for number in row])
