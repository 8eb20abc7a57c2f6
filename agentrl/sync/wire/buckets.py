"""A stream of tensors as a stream of buckets of bounded size, and back.

    tensors  |--a--|-b-|--------------c--------------|-d-|
    buckets  |--a--|-b-|--c..|   |..c..............| |..c--|-d-|      last

A tensor larger than what is left in a bucket is split, so memory is bounded by the buckets, of
which there are two: while the caller moves one, `pack` fills the other. The header travels beside
the bytes, so a receiver needs to know nothing beforehand. The last header carries the checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from torch import Tensor

from agentrl.errors import SyncError
from agentrl.sync.wire.checksum import (
    WeightDigest,
    check_all,
    check_tensor,
    empty_bytes,
    tensor_digest,
)
from agentrl.sync.wire.tensors import TensorRecord, aligned, flat_bytes, record_of, tensor_at


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPiece:
    """A tensor, or a part of one, in a bucket."""

    record: TensorRecord
    """The whole tensor; its offset is where this piece begins in the bucket."""
    start: int
    """First byte of the piece within the tensor."""
    size_bytes: int
    """Bytes of the piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketHeader:
    """The list of what a bucket holds."""

    pieces: tuple[BucketPiece, ...]
    """Pieces in the order of the stream."""
    size_bytes: int
    """Bytes of the bucket in use, from its beginning."""
    last: bool
    """Whether the stream ends with this bucket."""
    checksum: str = ""
    """Of the whole stream, in the last header only."""

    def to_json(self) -> bytes:
        """Make JSON of it for the wire."""
        rows = [[piece.start, piece.size_bytes, piece.record.to_json()] for piece in self.pieces]
        return orjson.dumps([self.size_bytes, self.last, self.checksum, rows])

    @classmethod
    def from_json(cls, data: bytes) -> BucketHeader:
        """The inverse of `to_json`."""
        size_bytes, last, checksum, rows = orjson.loads(data)
        return cls(
            pieces=tuple(_piece(row) for row in rows),
            size_bytes=size_bytes,
            last=last,
            checksum=checksum,
        )


def _piece(row: Sequence[Any]) -> BucketPiece:
    start, size_bytes, record = row
    return BucketPiece(record=TensorRecord.from_json(record), start=start, size_bytes=size_bytes)


Bucket = tuple[Tensor, BucketHeader]


def pack(weights: Iterable[tuple[str, Tensor]], buffers: Sequence[Tensor]) -> Iterator[Bucket]:
    """Fill the buffers in turn.

    Args:
        weights: the stream.
        buffers: flat uint8 tensors of one size. One that was yielded is filled again when as many
            further buckets are asked for as there are buffers, less one.

    Yields:
        A buffer and what lies in it; at least one, the last one marked.
    """
    size = len(buffers[0])
    digest = WeightDigest()
    pieces: list[BucketPiece] = []
    turn = used = 0
    for name, tensor in weights:
        data = flat_bytes(tensor)
        record = replace(record_of(name, tensor), digest=tensor_digest(data))
        digest.add(record)
        start = 0
        while True:
            offset = aligned(used)
            if offset >= size and pieces:
                yield buffers[turn], BucketHeader(pieces=tuple(pieces), size_bytes=used, last=False)
                turn, pieces, used, offset = (turn + 1) % len(buffers), [], 0, 0
            length = min(len(data) - start, size - offset)
            buffers[turn][offset : offset + length].copy_(data[start : start + length])
            placed = replace(record, offset=offset)
            pieces.append(BucketPiece(record=placed, start=start, size_bytes=length))
            start, used = start + length, offset + length
            if start == len(data):
                break
    yield (
        buffers[turn],
        BucketHeader(pieces=tuple(pieces), size_bytes=used, last=True, checksum=digest.hexdigest()),
    )


def unpack(buckets: Iterable[Bucket], *, version: int) -> Iterator[tuple[str, Tensor]]:
    """The stream that was packed, every tensor checked before it is yielded.

    A tensor that lay in one bucket is a view into it and valid until the next one is asked for.

    Raises:
        SyncError: bytes, order or checksum are not those that were sent.
    """
    digest = WeightDigest()
    whole: Tensor | None = None
    filled = 0
    for buffer, header in buckets:
        for piece in header.pieces:
            record = piece.record
            if piece.start != filled:
                raise SyncError(
                    f"weight {record.name!r}: a piece begins at byte {piece.start}, expected "
                    f"{filled}"
                )
            if piece.start == 0 and piece.size_bytes == record.size_bytes:
                tensor = tensor_at(buffer, record)
            else:
                whole = empty_bytes(record.size_bytes) if whole is None else whole
                data = buffer[record.offset : record.offset + piece.size_bytes]
                whole[filled : filled + piece.size_bytes].copy_(data)
                filled += piece.size_bytes
                if filled < record.size_bytes:
                    continue
                tensor, whole, filled = tensor_at(whole, replace(record, offset=0)), None, 0
            check_tensor(record, tensor)
            digest.add(record)
            yield record.name, tensor
        if header.last:
            if filled:
                raise SyncError(f"weights of version {version} end within a tensor")
            check_all(digest.hexdigest(), header.checksum, version)
            return
    raise SyncError(f"weights of version {version} end without a last bucket")
