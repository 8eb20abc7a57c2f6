"""Rows with images: what the language model is called with in the place of their ids.

Ranks in lock-step gather the weights of the vision tower together, so each makes as many passes of
it as the rank that needs most. A rank with fewer images reads a blank one instead: no number of its
rows depends on that, and the tower's weights get a gradient of zero from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.batch.tensors import TensorBatch
from agentrl.errors import TrainError
from agentrl.models.vision.embed import PlacedFeatures, count_passes, embeddings, rotary_positions
from agentrl.models.vision.reader import VisionReader, reader_of
from agentrl.train.model.segments import Segments, starts
from agentrl.train.model.stateful_layers import other_layers


def tower_passes(model: Any, batch: TensorBatch) -> int:
    """Passes of the vision tower that the images of a micro-batch take.

    Whatever is wrong with an image is found here, before ranks wait for each other.

    Raises:
        TrainError: as `image_arguments`.
        DataError: an image that cannot be read.
    """
    if not batch.images:
        return 0
    reader = _reader(model, batch)
    return count_passes(reader, [image.digest for image in _placed(reader, batch)])


def image_arguments(model: Any, batch: TensorBatch, segments: Segments) -> dict[str, Any]:
    """Arguments for packed rows of a language model: features in the place of placeholders.

    Args:
        model: whole, with the vision tower.
        batch: on the device of the model.
        segments: of the batch.

    Raises:
        TrainError: a model of text, one whose layers carry a state, placeholders or a grid that are
            not those of the image, or an image that is divided and must not be.
        DataError: an image that cannot be read.
    """
    reader = _reader(model, batch)
    placed = _placed(reader, batch)
    arguments = embeddings(model, reader, batch.input_ids_T, placed)
    if batch.blank_passes:
        found = _blank_features(model, reader, passes=batch.blank_passes)
        arguments["inputs_embeds"] = _Behind.apply(arguments["inputs_embeds"], *found)
    positions = _positions(reader, batch, segments).to(batch.input_ids_T.device)
    if reader.family.mutual:
        segments = _with_mutual(segments, placed)
    return {**arguments, "position_ids": positions, "segments": segments}


def _with_mutual(segments: Segments, placed: Sequence[PlacedFeatures]) -> Segments:
    """The segments of a model whose images are read as a whole, each token seeing all of its own.

    Raises:
        TrainError: an image that does not stand in one segment without a gap.
    """
    bounds = (0, *np.cumsum(segments.lengths).tolist())
    mutual = sorted((int(at.positions[0]), int(at.positions[-1]) + 1) for at in placed)
    for (start, end), at in zip(
        mutual, sorted(placed, key=lambda at: at.positions[0]), strict=True
    ):
        whole = end - start == len(at.positions)
        if not whole or any(start < bound < end for bound in bounds):
            raise TrainError(
                f"{at.what} ({at.digest[:8]}) stands at {start} to {end} of a micro-batch whose "
                f"segments end at {bounds[1:]}; an image that is read as a whole cannot be divided"
            )
    return replace(segments, mutual=tuple(mutual))


def _blank_features(model: Any, reader: VisionReader, *, passes: int) -> list[Tensor]:
    """What the vision tower makes of a blank image, once for each pass."""
    device = next(model.parameters()).device
    pixels = {name: tensor.to(device) for name, tensor in reader.blank().items()}
    found: list[Tensor] = []
    for _ in range(passes):
        (features,) = reader.family.features(model.base_model, [pixels])
        found.extend(features)
    return found


class _Behind(torch.autograd.Function):
    """Embeddings as they are, whose backward pass goes on into other tensors, with zeros."""

    @staticmethod
    def forward(ctx: Any, embedded: Tensor, *others: Tensor) -> Tensor:
        ctx.others = [(other.shape, other.dtype) for other in others]
        return embedded.view_as(embedded)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        (grad,) = grads
        return grad, *(grad.new_zeros(shape, dtype=dtype) for shape, dtype in ctx.others)


def _reader(model: Any, batch: TensorBatch) -> VisionReader:
    reader = reader_of(model)
    if reader is None or other_layers(model):
        raise TrainError(
            f"{type(model).__name__} reads text only here, and the rows of this micro-batch have "
            f"{len(batch.images)} images; give a vision-language model"
        )
    return reader


def _placed(reader: VisionReader, batch: TensorBatch) -> list[PlacedFeatures]:
    ids = batch.input_ids_T.cpu().numpy() if batch.images else np.zeros(0, dtype=np.int64)
    placed = [
        PlacedFeatures(
            digest=image.span.digest,
            first=0,
            positions=image.span.start
            + np.flatnonzero(ids[image.span.start : image.span.end] == reader.placeholder_id),
            what=f"row {image.row}, image {image.number}",
        )
        for image in batch.images
    ]
    for found, image in zip(placed, batch.images, strict=True):
        if len(found.positions) != image.span.features:
            raise TrainError(
                f"{found.what} ({found.digest[:8]}): {len(found.positions)} placeholders among the "
                f"ids for {image.span.features} features"
            )
        if (grid := reader.read(found.digest).expanded.grid) != image.span.grid:
            raise TrainError(
                f"{found.what} ({found.digest[:8]}): the image processor of the trainer makes "
                f"{grid} features (frames or tiles, rows, columns) of it, and that of the rollout "
                f"made {image.span.grid}; both must have the settings of one checkpoint"
            )
    return placed


def _positions(reader: VisionReader, batch: TensorBatch, segments: Segments) -> Tensor:
    """[1, T] positions, or [3, 1, T] by frame, row and column, rebuilt from the images of rows."""
    if not reader.family.multi_axis_rope:
        return batch.position_ids_T[None]
    parts: list[NDArray[np.int64]] = []
    # By segment, where what continues it goes on; -1 for roots.
    goes_on = {-1: 0}
    for segment, (start, length, parent) in enumerate(
        zip(starts(segments), segments.lengths, segments.parents, strict=True)
    ):
        own = [
            replace(image.span, start=image.span.start - start)
            for image in batch.images
            if start <= image.span.start < start + length
        ]
        found = goes_on[parent] + rotary_positions(reader, own, length + 1)
        goes_on[segment] = int(found[0, -1])
        parts.append(found[:, :-1])
    return torch.from_numpy(np.concatenate(parts, axis=1))[:, None]
