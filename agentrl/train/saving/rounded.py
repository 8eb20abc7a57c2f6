"""The state of a trainer in half the room, for a run that has ended and may be given more steps.

    masters     what they are more than the weights beside them, in 16 bits: bit for bit, but where
                a master lies in the middle of two bfloat16 numbers, and then off by its last bit;
                float32 weights are the masters
    moments     in bfloat16, with a relative error of at most 2^-9

All else stays as it is. 12 bytes a parameter become 6, or 4 beside float32 weights.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from agentrl.disk.checkpoint import PARTS_FOLDER
from agentrl.models.files.tensor_file import WrittenTensor, map_tensors, write_tensors
from agentrl.train.saving.own_part import MASTERS

FROM_WEIGHTS = "from_weights"
"""Metadata of a part: by name of a tensor, how many of its numbers lie on top of weights."""
WEIGHT_MARKS = "weight_marks"
"""Metadata of a part: by name of such a tensor, `mark_of` the weights that it lies on."""
_MARKED = 4096
"""Numbers of a weight that tell it from another."""
_POLICY_MASTERS = f"policy/{MASTERS}/"
_SMALL = 1024
"""Tensors with fewer numbers stay as they are."""


@dataclass(frozen=True, slots=True)
class RoundedPart:
    """Numbers of a part in float32, made when they are asked for."""

    stored: Tensor
    """[n] bfloat16, or [n] int16 on top of `weights`, or [0] where the weights are all of it."""
    weights: Tensor | None = None
    """[n] bfloat16 or float32; None where `stored` is all of it."""

    def numel(self) -> int:
        """Count of its numbers, as of a tensor."""
        return (self.stored if self.weights is None else self.weights).numel()

    def __getitem__(self, where: slice) -> Tensor:
        if self.weights is None:
            return self.stored[where].float()
        weights = self.weights[where]
        return _on_top(weights, self.stored[where]) if self.stored.numel() else weights


def write_rounded(checkpoint: Path, folder: Path) -> None:
    """Write the parts of the state of a checkpoint in less room, tensor by tensor.

    Args:
        checkpoint: has weights and state.
        folder: is there; takes files of the names that the parts have.

    Raises:
        OSError: as while reading or writing.
        ValueError: a file is torn.
    """
    weights = flat_weights(checkpoint)
    for path in sorted((checkpoint / PARTS_FOLDER).iterdir()):
        tensors, metadata = map_tensors(path)
        places, on_weights = json.loads(metadata["places"]), dict[str, int]()
        written: list[WrittenTensor] = []
        for name, tensor in tensors.items():
            one = _rounded(name, partial(_flat, path, name), weights, places[name])
            written.append(one)
            if name.startswith(_POLICY_MASTERS) and one.dtype != torch.float32:
                on_weights[name] = tensor.numel()
        marks = {name: mark_of(name, weights) for name in on_weights}
        more = {FROM_WEIGHTS: json.dumps(on_weights), WEIGHT_MARKS: json.dumps(marks)}
        write_tensors(folder / path.name, written, metadata={**metadata, **more})


def mark_of(name: str, weights: Mapping[str, Tensor]) -> int:
    """Checksum of numbers in the middle of the weight that a part lies on.

    Args:
        name: of the part in its file.
        weights: as from `flat_weights`.

    Raises:
        KeyError: it is missing.
    """
    flat = weights[name.removeprefix(_POLICY_MASTERS)]
    middle = flat[len(flat) // 2 :][:_MARKED].contiguous()
    return zlib.crc32(middle.view(torch.uint8).numpy().data)


def read_rounded(
    name: str,
    stored: Tensor,
    start: int,
    on_weights: Mapping[str, int],
    weights: Mapping[str, Tensor],
) -> Tensor | RoundedPart:
    """A tensor that `write_rounded` wrote, as it was before.

    Args:
        name: in the file.
        stored: the tensor of the file.
        start: first of its numbers in the flat form of the whole.
        on_weights: as `FROM_WEIGHTS` in the file.
        weights: as from `flat_weights`, of the same checkpoint.

    Raises:
        KeyError: weights are missing.
    """
    if (count := on_weights.get(name)) is not None:
        whole = weights[name.removeprefix(_POLICY_MASTERS)]
        return RoundedPart(stored, whole[start : start + count])
    return RoundedPart(stored) if stored.dtype == torch.bfloat16 else stored


def flat_weights(checkpoint: Path) -> dict[str, Tensor]:
    """[n] Weights of a checkpoint by name, mapped, each in its flat form."""
    found: dict[str, Tensor] = {}
    for path in sorted(checkpoint.glob("model*.safetensors")):
        found.update(map_tensors(path)[0])
    return {name: tensor.reshape(-1) for name, tensor in found.items()}


def _flat(path: Path, name: str) -> Tensor:
    """One tensor of a part, mapped by itself: what was read of it is not kept in memory."""
    return map_tensors(path)[0][name].reshape(-1)


def _rounded(
    name: str, take: Callable[[], Tensor], weights: Mapping[str, Tensor], place: list[int]
) -> WrittenTensor:
    """One tensor of a part as it is written; it is asked for each time that it is looked at."""
    tensor = take()

    def written(dtype: torch.dtype, count: int, take: Callable[[], Tensor]) -> WrittenTensor:
        return WrittenTensor(name=name, dtype=dtype, shape=(count,), take=take)

    as_it_is = written(tensor.dtype, tensor.numel(), take)
    if tensor.dtype != torch.float32 or tensor.numel() < _SMALL:
        return as_it_is
    if f"/{MASTERS}/" not in name:
        return written(torch.bfloat16, tensor.numel(), lambda: take().to(torch.bfloat16))
    whole = weights.get(name.removeprefix(_POLICY_MASTERS))
    if whole is None or whole.numel() != torch.Size(place[1:]).numel():
        return as_it_is
    part = whole[place[0] : place[0] + tensor.numel()]
    if part.dtype == torch.float32 and torch.equal(part, tensor):
        return written(torch.int16, 0, partial(torch.empty, 0, dtype=torch.int16))
    if part.dtype == torch.bfloat16:
        apart = _bits(_on_top(part, _above(tensor, part))) - _bits(tensor)
        if int(apart.abs().max()) <= 1:
            return written(torch.int16, tensor.numel(), lambda: _above(take(), part))
    return as_it_is


def _above(master: Tensor, weights: Tensor) -> Tensor:
    """[n] int16: how many steps of float32 a master lies from its bfloat16 weight."""
    return (_bits(master) - _bits(weights.float())).clamp(-(2**15), 2**15 - 1).to(torch.int16)


def _on_top(weights: Tensor, above: Tensor) -> Tensor:
    """[n] float32: the master that lies so many steps from its weight."""
    return (_bits(weights.float()) + above).view(torch.float32)


def _bits(numbers: Tensor) -> Tensor:
    return numbers.contiguous().view(torch.int32)
