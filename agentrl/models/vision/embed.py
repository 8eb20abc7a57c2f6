"""Features of images among the embeddings of a sequence, and positions behind them.

Images of one size go through the vision tower together. Each attends to itself alone, so the
numbers of one do not depend on which others are computed with it, and a broken one reaches no
other row.

Legend: `_T` tokens, `_E` width of the hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.errors import DataError
from agentrl.models.vision.reader import VisionReader
from agentrl.types import ImageSpan

IntArray = NDArray[np.int64]
TOWER_BYTES = 16 * 2**20
"""Pixels that one pass of the vision tower reads; a larger image has a pass of its own."""
_FEWEST_FEATURES = 16
"""Features of a pass. Products of fewer rows are rounded otherwise on CPUs (`least_rows`), so an
image alone would have other bits than the same image among others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFeatures:
    """Features of one image that stand in a sequence: all of them, or those of a part of it."""

    digest: str
    """Which image."""
    first: int
    """Number of the first feature that is wanted."""
    positions: IntArray
    """[features] Where they stand."""
    what: str = ""
    """Turn or row and number of the image, for the message of an error."""


def language_model(model: Any) -> Any:
    """The part of a vision-language model that reads embeddings; its own body has attention."""
    return model.base_model.get_decoder()


def embeddings(
    model: Any, reader: VisionReader, ids_T: Tensor, placed: Sequence[PlacedFeatures]
) -> dict[str, Any]:
    """Arguments that the language model is called with in the place of ids.

    Args:
        model: whole, with the vision tower.
        reader: of the model.
        ids_T: [T] ids, on the device of the model.
        placed: what stands where; an image that stands in several rows is computed once.

    Returns:
        `inputs_embeds` [1, T, E] with features in the place of placeholders; for families whose
        first layers add features, `visual_pos_masks` [1, T] and `deepstack_visual_embeds`, one
        [features, E] a layer.

    Raises:
        DataError: an image has another number of features than it has placeholders.
    """
    embedded = model.get_input_embeddings()(ids_T[None])
    if not placed:
        return {"inputs_embeds": embedded}
    placed = sorted(placed, key=lambda image: image.positions[0])
    computed = image_features(model, reader, [image.digest for image in placed])
    parts: list[list[Tensor]] = []
    for image in placed:
        found, end = computed[image.digest], image.first + len(image.positions)
        if end > len(found[0]):
            raise DataError(
                f"{image.what or 'an image'} ({image.digest[:8]}): {end} placeholders, but the "
                f"model computes {len(found[0])} features"
            )
        parts.append([features[image.first : end] for features in found])
    at = torch.from_numpy(np.sort(np.concatenate([image.positions for image in placed])))
    at = at.to(ids_T.device)
    first, *layers = (torch.cat(level).to(embedded.dtype) for level in zip(*parts, strict=True))
    out: dict[str, Any] = {"inputs_embeds": embedded.index_copy(1, at, first[None])}
    if layers:
        mask = torch.zeros(ids_T.shape, dtype=torch.bool, device=ids_T.device)
        out["visual_pos_masks"] = mask.index_fill(0, at, True)[None]
        out["deepstack_visual_embeds"] = layers
    return out


def image_features(
    model: Any, reader: VisionReader, digests: Sequence[str]
) -> Mapping[str, tuple[Tensor, ...]]:
    """[features, E] of each image, as `VisionFamily.features`; one named twice is computed once."""
    device = next(model.parameters()).device
    images = {digest: reader.read(digest) for digest in digests}
    computed: dict[str, tuple[Tensor, ...]] = {}
    for together in _passes({digest: image.pixels for digest, image in images.items()}):
        batch = [
            {name: tensor.to(device) for name, tensor in images[digest].pixels.items()}
            for digest in together
        ]
        features = len(batch) * images[together[0]].expanded.features
        batch *= -(-_FEWEST_FEATURES // features)
        found = reader.family.features(model.base_model, batch)
        computed.update(zip(together, found, strict=False))
    return computed


def count_passes(reader: VisionReader, digests: Sequence[str]) -> int:
    """Passes of the vision tower in which `image_features` computes some images."""
    return len(_passes({digest: reader.read(digest).pixels for digest in digests}))


def _passes(pixels: Mapping[str, Mapping[str, Tensor]]) -> list[list[str]]:
    """Images that are computed together: those of one size, up to `TOWER_BYTES`."""
    passes: list[list[str]] = []
    open_passes: dict[tuple[torch.Size, ...], list[str]] = {}
    for digest, tensors in pixels.items():
        shapes = tuple(tensor.shape for tensor in tensors.values())
        size = sum(tensor.nbytes for tensor in tensors.values())
        if (together := open_passes.get(shapes)) is None or size * (
            len(together) + 1
        ) > TOWER_BYTES:
            together = open_passes[shapes] = []
            passes.append(together)
        together.append(digest)
    return passes


def rotary_positions(reader: VisionReader, spans: Sequence[ImageSpan], length: int) -> IntArray:
    """[3, length] position of each token of a sequence by frame, row and column (m-rope).

    Tokens of text have one position on all axes. The first token behind an image goes on after the
    largest position in it. Families without such axes get the position of the token three times.

    Args:
        reader: of the model.
        spans: images of the sequence, in order; one that begins behind its end is left out.
        length: tokens.

    Example:
        Two tokens, an image of 2 x 3 features, one token:

        >>> spans = [ImageSpan(digest="d", start=2, tokens=6, grid=(1, 2, 3))]
        >>> rotary_positions(reader, spans, 9)[1].tolist()      # doctest: +SKIP
        [0, 1, 2, 2, 2, 3, 3, 3, 5]
    """
    out = np.empty((3, length), dtype=np.int64)
    at = position = 0
    for span in spans if reader.family.multi_axis_rope else ():
        if span.start >= length:
            break
        out[:, at : span.start] = position + np.arange(span.start - at)
        position += span.start - at
        end = min(span.end, length)
        inside = np.indices(span.grid).reshape(3, -1)
        out[:, span.start : end] = position + inside[:, : end - span.start]
        position += max(span.grid[1], span.grid[2])
        at = end
    out[:, at:] = position + np.arange(length - at)
    return out
