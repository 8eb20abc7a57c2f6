"""One number for all weights: a digest over names, shapes, dtypes and bytes, in their order.

xxh3_128 and not a cryptographic hash: the enemy is a torn copy, not a forger, and at 30 GB/s on one
core it costs less than the copy beside it (BLAKE3 reaches 6). A tensor is hashed in pieces whose
digests are hashed again: several cores can share one, and a piece can be hashed right after it was
copied, while it is still in the cache, which makes the digest almost free.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
import xxhash
from torch import Tensor

from agentrl.errors import SyncError
from agentrl.sync.tensors import TensorRecord, flat_bytes, record_of

PIECE = 1 << 18
"""Bytes hashed on their own: they fit the second cache level."""
SHARE = 32 * PIECE
"""Bytes of which a thread takes care at a time."""
THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))
"""Half the cores: two on one memory channel are no faster than one."""


def tensor_digest(tensor: Tensor) -> str:
    """The digest of a tensor's bytes."""
    data = flat_bytes(tensor).numpy()
    return _in_pieces(len(data), lambda start, end: xxhash.xxh3_128_digest(data[start:end].data))


def copy_with_digest(target: Tensor, source: Tensor) -> str:
    """Copy a tensor's bytes into a flat uint8 tensor of their size, and return their digest."""
    if source.device.type != "cpu" or not source.is_contiguous():
        target.view(source.dtype).view(source.shape).copy_(source.detach())
        return tensor_digest(target)
    bytes_in, bytes_out = flat_bytes(source).numpy(), target.numpy()

    def copy(start: int, end: int) -> bytes:
        part = bytes_out[start:end]
        part[:] = bytes_in[start:end]
        return xxhash.xxh3_128_digest(part.data)

    return _in_pieces(len(bytes_in), copy)


class WeightDigest:
    """Collects the records of a stream into its checksum.

    Example:
        >>> digest = WeightDigest()
        >>> digest.add(described("w", torch.zeros(2)))
        >>> len(digest.hexdigest())
        32
    """

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def add(self, record: TensorRecord) -> None:
        """Take the next tensor; its digest must be known."""
        shape = "x".join(map(str, record.shape))
        self._state.update(f"{record.name}|{record.dtype}|{shape}|{record.digest}\n".encode())

    def hexdigest(self) -> str:
        """The checksum of everything added."""
        return self._state.hexdigest()


def described(name: str, tensor: Tensor) -> TensorRecord:
    """Describe a tensor, digest included."""
    return replace(record_of(name, tensor), digest=tensor_digest(tensor))


def check_tensor(record: TensorRecord, tensor: Tensor) -> None:
    """Compare a tensor's bytes with its record.

    Raises:
        SyncError: they differ.
    """
    got = tensor_digest(tensor)
    if got != record.digest:
        raise SyncError(
            f"weight {record.name!r} arrived damaged: digest {got}, sent as {record.digest}"
        )


def check_all(got: str, expected: str, version: int) -> None:
    """Compare the checksum of everything received with the one that was sent.

    Raises:
        SyncError: they differ.
    """
    if got != expected:
        raise SyncError(
            f"weights of version {version} have checksum {got}, sent as {expected or '(none)'}"
        )


def _in_pieces(size: int, act: Callable[[int, int], bytes]) -> str:
    def run(first: int, last: int) -> bytes:
        return b"".join(act(at, min(at + PIECE, last)) for at in range(first, last, PIECE))

    if THREADS == 1 or size < 2 * SHARE:
        return xxhash.xxh3_128_hexdigest(run(0, size))
    with ThreadPoolExecutor(THREADS) as pool:
        parts = pool.map(lambda at: run(at, min(at + SHARE, size)), range(0, size, SHARE))
        return xxhash.xxh3_128_hexdigest(b"".join(parts))


def empty_bytes(size: int) -> Tensor:
    """A flat buffer, not initialised."""
    return torch.empty(size, dtype=torch.uint8)
