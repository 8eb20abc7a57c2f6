"""Files of safetensors written tensor by tensor: no more than one is in main memory for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import TrainError
from agentrl.machine.files import replacing

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTensor:
    """A tensor that is asked for when it is its turn to be written."""

    name: str
    """In the file."""
    dtype: torch.dtype
    """Of the numbers."""
    shape: tuple[int, ...]
    """Of the tensor."""
    take: Callable[[], Tensor]
    """Gives it, once."""

    @property
    def bytes(self) -> int:
        """Its size in the file."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def write_tensors(
    path: Path, tensors: Sequence[WrittenTensor], *, metadata: Mapping[str, str]
) -> None:
    """Write a file of safetensors, whole or not at all.

    Raises:
        OSError: as while writing; nothing is left behind.
        TrainError: a dtype that the format does not know.
    """
    # Wide numbers first: so each begins at a multiple of its size, and can be mapped into memory.
    ordered = sorted(tensors, key=lambda one: -one.dtype.itemsize)
    head: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for one in ordered:
        if one.dtype not in _NAMES:
            raise TrainError(f"{one.name} is in {one.dtype}, which safetensors does not know")
        head[one.name] = {
            "dtype": _NAMES[one.dtype],
            "shape": list(one.shape),
            "data_offsets": [at, at := at + one.bytes],
        }
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as temporary, temporary.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for one in ordered:
            file.write(_bytes_of(one))


def _bytes_of(one: WrittenTensor) -> memoryview:
    tensor = one.take().detach().cpu().contiguous().reshape(-1)
    assert tensor.dtype == one.dtype, f"{one.name} is in {tensor.dtype}, expected {one.dtype}"
    assert tensor.numel() * tensor.element_size() == one.bytes, one.name
    return tensor.view(torch.uint8).numpy().data


def map_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file and its metadata; nothing is read before a tensor is looked at.

    Raises:
        OSError: it is not there.
        ValueError: it is torn, or no file of safetensors.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size:
            raise ValueError(f"{path.name} is not whole: its head has {length} of {size} bytes")
        head = json.loads(file.read(length))
    begin = 8 + length
    metadata = head.pop("__metadata__", {})
    end = max((one["data_offsets"][1] for one in head.values()), default=0)
    if begin + end != size:
        raise ValueError(f"{path.name} is not whole: {size} bytes, expected {begin + end}")
    storage: Any = torch.UntypedStorage.from_file(str(path), False, size)
    found: dict[str, Tensor] = {}
    for name, one in head.items():
        dtype, shape = _DTYPES[one["dtype"]], torch.Size(one["shape"])
        start = (begin + one["data_offsets"][0]) // dtype.itemsize
        empty: Any = torch.empty(0, dtype=dtype)
        found[name] = empty.set_(storage, start, shape)
    return found, metadata
