"""Tensors on the wire: a name, a dtype, a shape, and bytes in row-major order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import SyncError

ALIGNMENT = 64
"""Bytes to which every tensor is aligned in a buffer: a cache line, and any dtype's own need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecord:
    """One tensor without its bytes."""

    name: str
    """As in the Hugging Face checkpoint."""
    dtype: str
    """As torch prints it without `torch.`: `bfloat16`."""
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    digest: str = ""
    """Of the bytes, see `agentrl.sync.wire.checksum`; empty where it is not known yet."""
    offset: int = 0
    """First byte, in whatever buffer holds the tensor."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * torch_dtype(self.dtype).itemsize

    def to_json(self) -> list[Any]:
        """A compact list, in the order of the fields."""
        return [self.name, self.dtype, list(self.shape), self.digest, self.offset]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> TensorRecord:
        """The inverse of `to_json`."""
        name, dtype, shape, digest, offset = row
        return cls(name=name, dtype=dtype, shape=tuple(shape), digest=digest, offset=offset)


def torch_dtype(name: str) -> torch.dtype:
    """The dtype that torch prints as `torch.NAME`.

    Raises:
        SyncError: this torch has no such dtype.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise SyncError(f"unknown dtype {name!r}; this is torch {torch.__version__}")
    return found


def record_of(name: str, tensor: Tensor) -> TensorRecord:
    """Describe a tensor; its digest is not known yet."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorRecord(name=name, dtype=dtype, shape=tuple(tensor.shape))


def flat_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor as a flat uint8 tensor on the CPU; a view where that is possible."""
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)


def tensor_at(buffer: Tensor, record: TensorRecord) -> Tensor:
    """The tensor of a record as a view into a flat uint8 buffer."""
    part = buffer[record.offset : record.offset + record.size_bytes]
    return part.view(torch_dtype(record.dtype)).view(record.shape)


def aligned(offset: int) -> int:
    """The next offset at which a tensor may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


class WeightLayout:
    """Holds a stream of weights to the names, dtypes and shapes of the first one.

    Receivers have proved once that these fit their model; a change must not reach them unnoticed.
    """

    def __init__(self) -> None:
        self._rows: list[TensorRecord] | None = None

    def watch(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[TensorRecord, Tensor]]:
        """Pass the tensors through, described.

        Raises:
            SyncError: one differs from that at its index in the first stream, or the number does.
        """
        seen: list[TensorRecord] = []
        for name, tensor in weights:
            record = record_of(name, tensor)
            if self._rows is not None:
                self._compare(len(seen), record)
            seen.append(record)
            yield record, tensor
        if self._rows is None:
            repeated = len(seen) - len({record.name for record in seen})
            if repeated:
                raise SyncError(f"{repeated} of {len(seen)} weights have a name sent before")
            self._rows = seen
        elif len(seen) < len(self._rows):
            raise SyncError(
                f"weights end before {self._rows[len(seen)].name!r}: got {len(seen)}, the first "
                f"sync had {len(self._rows)}"
            )

    def _compare(self, index: int, got: TensorRecord) -> None:
        assert self._rows is not None
        want = self._rows[index] if index < len(self._rows) else None
        if got != want:
            had = f"{want.name!r} {want.dtype} {want.shape}" if want else "nothing"
            raise SyncError(
                f"weights changed their layout at place {index}: got {got.name!r} {got.dtype} "
                f"{got.shape}, the first sync had {had}; restart to serve another model"
            )


def total_bytes(weights: Iterable[tuple[str, Tensor]]) -> int | None:
    """Bytes that the weights take when aligned; None for a stream, which can be read only once."""
    if isinstance(weights, Mapping):
        raise TypeError("weights are (name, tensor) pairs; pass list(state.items())")
    if not isinstance(weights, Sequence):
        return None
    return sum(aligned(tensor.numel() * tensor.element_size()) for _, tensor in weights)
