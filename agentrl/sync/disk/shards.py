"""A folder of safetensors files and one `weights.json` that describes them, written whole.

Everything is written into a hidden neighbour that takes its name in the end, so a folder that can
be seen is complete. It is not forced to the disk: after a power failure the digests show it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
from safetensors import SafetensorError, safe_open
from torch import Tensor

from agentrl.errors import SyncError
from agentrl.sync.wire.checksum import check_tensor, tensor_digest
from agentrl.sync.wire.patches import PatchBase
from agentrl.sync.wire.tensors import TensorRecord, flat_bytes, record_of

MANIFEST = "weights.json"
SHARD = 512 << 20
"""Bytes after which a new file is begun."""
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The list of what a folder holds."""

    version: int
    """Version of the weights."""
    checksum: str
    """Of all weights, also where only their patches are here."""
    base: PatchBase | None
    """What the files are patches to; None where they are the weights."""
    size_bytes: int
    """Of all tensors in the files."""
    files: tuple[tuple[str, tuple[TensorRecord, ...]], ...]
    """File names and what lies in each, in the order of the stream."""


class FolderWriter:
    """Writes one version under a hidden name until `publish`."""

    def __init__(self, folder: Path) -> None:
        """Make the hidden folder.

        Raises:
            SyncError: it cannot be made.
        """
        self._folder = folder
        self._hidden = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        self._files: list[tuple[str, tuple[TensorRecord, ...]]] = []
        self._size = 0
        with self._cleaned_up():
            shutil.rmtree(self._hidden, ignore_errors=True)
            self._hidden.mkdir(parents=True)

    def write(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Write a stream, in files of about `SHARD` bytes.

        Raises:
            SyncError: the disk is full, or does not let itself be written; nothing is left.
        """
        shard: list[tuple[str, Tensor]] = []
        held = 0
        with self._cleaned_up():
            for name, tensor in weights:
                shard.append((name, tensor))
                held += tensor.nbytes
                if held >= SHARD:
                    self._write_file(shard)
                    shard, held = [], 0
            if shard:
                self._write_file(shard)

    def publish(self, *, version: int, checksum: str, base: PatchBase | None) -> int:
        """Give the folder its name.

        Returns:
            Bytes of the tensors in it.

        Raises:
            SyncError: it could not be written; nothing is left.
        """
        document = {
            "version": version,
            "checksum": checksum,
            "base": [base.version, base.checksum] if base else None,
            "size_bytes": self._size,
            "files": [[name, [row.to_json() for row in rows]] for name, rows in self._files],
        }
        with self._cleaned_up():
            (self._hidden / MANIFEST).write_bytes(orjson.dumps(document))
            if self._folder.exists():
                shutil.rmtree(self._folder)
            self._hidden.rename(self._folder)
        return self._size

    @contextlib.contextmanager
    def _cleaned_up(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            # Also on cancellation: a half-written version goes, the exception stays.
            shutil.rmtree(self._hidden, ignore_errors=True)
            if isinstance(error, OSError):
                raise SyncError(
                    f"cannot write weights to {self._folder.parent}: {error.strerror or error} "
                    f"after {self._size} bytes; free some space or set `sync.directory`"
                ) from error
            raise

    def _write_file(self, shard: list[tuple[str, Tensor]]) -> None:
        header: dict[str, object] = {}
        records: list[TensorRecord] = []
        end = 0
        for name, tensor in shard:
            record = replace(record_of(name, tensor), digest=tensor_digest(tensor))
            if record.dtype not in _DTYPES:
                raise SyncError(f"weight {name!r}: safetensors has no dtype {record.dtype}")
            begin, end = end, end + tensor.nbytes
            header[name] = {
                "dtype": _DTYPES[record.dtype],
                "shape": list(record.shape),
                "data_offsets": [begin, end],
            }
            records.append(record)
        head = orjson.dumps(header)
        head += b" " * (-len(head) % 8)
        name = f"{len(self._files):05d}.safetensors"
        with (self._hidden / name).open("xb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for _, tensor in shard:
                file.write(flat_bytes(tensor).numpy().data)
        self._files.append((name, tuple(records)))
        self._size += end


def read_manifest(folder: Path) -> Manifest:
    """Read what a folder holds.

    Raises:
        SyncError: it is gone or no folder of weights.
    """
    try:
        document = orjson.loads((folder / MANIFEST).read_bytes())
        base = document["base"]
        return Manifest(
            version=document["version"],
            checksum=document["checksum"],
            base=PatchBase(version=base[0], checksum=base[1]) if base else None,
            size_bytes=document["size_bytes"],
            files=tuple(
                (name, tuple(TensorRecord.from_json(row) for row in rows))
                for name, rows in document["files"]
            ),
        )
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise SyncError(
            f"no weights in {folder}: {error}; does the engine see the folder of the trainer?"
        ) from error


def read_tensors(folder: Path, manifest: Manifest) -> Iterator[tuple[TensorRecord, Tensor]]:
    """The tensors of a folder in the order of the stream, each checked.

    Raises:
        SyncError: a file is gone, truncated or damaged.
    """
    for name, records in manifest.files:
        try:
            with safe_open(folder / name, framework="pt") as file:
                for record in records:
                    tensor = file.get_tensor(record.name)
                    if str(tensor.dtype) != f"torch.{record.dtype}" or tensor.shape != record.shape:
                        raise SyncError(f"weight {record.name!r} in {folder / name} was replaced")
                    check_tensor(record, tensor)
                    yield record, tensor
        except (OSError, SafetensorError) as error:
            raise SyncError(f"cannot read {folder / name}: {error}") from error
