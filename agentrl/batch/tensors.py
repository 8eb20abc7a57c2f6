"""Micro-batches as torch tensors; the only file of the batch stage that knows torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentrl.batch.records import MASK_KEYS, BoolArray, MicroBatch, PackedImage
from agentrl.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class TopIds:
    """A wish for the likeliest tokens of a distribution."""

    k: int
    """Their number."""
    below: int
    """Only ids below this; others belong to the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBatch:
    """A `MicroBatch` on a device. Field meanings and shapes are those of `MicroBatch`."""

    lengths: tuple[int, ...]
    """[S] As plain numbers, so that attention needs no copy from the device."""
    parents: tuple[int, ...]
    """[S] As plain numbers."""
    input_ids_T: Tensor
    """[T] int64."""
    position_ids_T: Tensor
    """[T] int64."""
    source_A: Tensor
    """[A] int64 packed position that predicts each token the loss looks at."""
    target_A: Tensor
    """[A] int64 id of each of these tokens."""
    index_A: Tensor
    """[A] int64 response position of each of these tokens."""
    temperature_A: Tensor | None
    """[A] Sampling temperature of each of these tokens; None when all are 1."""
    mask_R: Tensor
    """[R] bool."""
    sampled_R: Tensor
    """[R] bool."""
    sequence_R: Tensor
    """[R] int64 index of the rollout; the rows of a rollout share it."""
    num_sequences: int
    """Rollouts in the micro-batch."""
    rollout_log_probs_R: Tensor
    """[R] Floating point."""
    advantages_R: Tensor
    """[R] Floating point."""
    weights_R: Tensor
    """[R] Floating point."""
    more_AK: Tensor | None = None
    """[A, K] int64 ids whose log-probabilities are wanted beside that of the token; None wants
    none."""
    top: TopIds | None = None
    """Likeliest tokens whose ids and log-probabilities are wanted, without gradient."""
    entropy_gradient: bool = False
    """Whether a gradient is wanted through the entropies, too."""
    images: tuple[PackedImage, ...] = ()
    """Images by packed position; their pixels are read when the model needs them."""
    blank_passes: int = 0
    """Passes of the vision tower over a blank image; ranks in lock-step make equally many."""


def to_tensors(
    micro: MicroBatch,
    *,
    device: torch.device,
    dtype: torch.dtype,
    mask_keys: Sequence[str] = ("response_mask",),
) -> TensorBatch:
    """Copy a micro-batch to a device.

    Args:
        micro: the micro-batch.
        device: where the model is.
        dtype: of the floating-point arrays; float32, or float64 for a float64 model.
        mask_keys: masks of `MASK_KEYS` that the loss declares. Tokens under any of them get a
            log-probability, trained tokens always.

    Raises:
        DataError: a mask that is none of `MASK_KEYS`.
    """
    looked_at = _looked_at(micro, mask_keys).nonzero()[0]
    temperature_A = micro.temperature_N[micro.row_R[looked_at]]

    rollouts = {key.rollout_id: None for key in micro.rows}
    number = {rollout_id: index for index, rollout_id in enumerate(rollouts)}
    of_row = np.array([number[key.rollout_id] for key in micro.rows], dtype=np.int64)

    def put(array: object, kind: torch.dtype) -> Tensor:
        return torch.as_tensor(array, dtype=kind).to(device, non_blocking=True)

    return TensorBatch(
        lengths=tuple(micro.lengths_S.tolist()),
        parents=tuple(micro.parents_S.tolist()),
        input_ids_T=put(micro.input_ids_T, torch.int64),
        position_ids_T=put(micro.position_ids_T, torch.int64),
        source_A=put(micro.source_R[looked_at], torch.int64),
        target_A=put(micro.target_R[looked_at], torch.int64),
        index_A=put(looked_at, torch.int64),
        temperature_A=None if (temperature_A == 1.0).all() else put(temperature_A, dtype),
        mask_R=put(micro.mask_R, torch.bool),
        sampled_R=put(micro.sampled_R, torch.bool),
        sequence_R=put(of_row[micro.row_R], torch.int64),
        num_sequences=len(number),
        rollout_log_probs_R=put(micro.rollout_log_probs_R, dtype),
        advantages_R=put(micro.advantages_R, dtype),
        weights_R=put(micro.weights_R, dtype),
        images=micro.images,
    )


def _looked_at(micro: MicroBatch, mask_keys: Sequence[str]) -> BoolArray:
    found = micro.mask_R
    for key in mask_keys:
        if key == "response_mask":
            found = found | micro.sampled_R
        elif key == "observation_mask":
            found = found | ~micro.sampled_R
        elif key != "final_response_mask":
            raise DataError(f"no mask is called {key!r}; there are {', '.join(MASK_KEYS)}")
    return found
