"""The footer of a parquet file without what only a query planner reads.

pyarrow counts for each column how often each encoding and each depth of nesting occurs, says twice
that a text is one, and how to compare bounds that are not there, and offers no way to leave that
out. It is a quarter of the footer, and of a file of a few thousand tokens the footer is a fifth.
All are optional fields, so the file stays one for every reader.

The footer is a Thrift struct in the compact protocol: fields say how far their id is from the one
before, so a field that goes changes the byte in front of the next.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

_DROPPED: Mapping[tuple[int, ...], Collection[int]] = {
    (): (7,),  # column_orders
    (2,): (10,),  # schema: logicalType, which converted_type says for all types we use
    (4, 1, 3): (13, 16),  # row_groups, columns, meta_data: encoding_stats, size_statistics
}
"""Numbers of fields to drop, by those of the fields that lead to their struct."""
_TAIL = 8
"""Bytes behind the footer: its length and `PAR1`."""
_BOOLS, _BYTE, _INTEGERS, _DOUBLE, _BINARY = (1, 2), 3, (4, 5, 6), 7, 8
_LISTS, _STRUCT = (9, 10), 12
"""Thrift's names for how a value is written."""


def slim_footer(file: bytes) -> bytes:
    """A parquet file, whole, with a smaller footer; its pages stay where they are."""
    start = len(file) - _TAIL - int.from_bytes(file[-_TAIL:-4], "little")
    footer, end = _slim(file, start, ())
    assert end == len(file) - _TAIL, f"the footer ends at {end} of {len(file)} bytes"
    return file[:start] + footer + len(footer).to_bytes(4, "little") + file[-4:]


def _slim(data: bytes, at: int, path: tuple[int, ...]) -> tuple[bytes, int]:
    """The struct at a place without what is dropped in it, and where it ends."""
    dropped = _DROPPED.get(path, ())
    out = bytearray()
    number = written = 0
    while data[at]:
        kind, step = data[at] & 15, data[at] >> 4
        at += 1
        if step:
            number += step
        else:
            zigzag, at = _varint(data, at)
            number = (zigzag >> 1) ^ -(zigzag & 1)
        inside = (*path, number)
        if any(way[: len(inside)] == inside for way in _DROPPED):
            value, at = _follow(data, at, kind, inside)
        else:
            start, at = at, _skip(data, at, kind)
            value = data[start:at]
        if number not in dropped:
            assert 0 < number - written < 16, f"field {number} after {written}"
            out += bytes([(number - written) << 4 | kind]) + value
            written = number
    return bytes(out) + b"\0", at + 1


def _follow(data: bytes, at: int, kind: int, path: tuple[int, ...]) -> tuple[bytes, int]:
    """A struct, or a list of them."""
    if kind == _STRUCT:
        return _slim(data, at, path)
    start = at
    count, _, at = _list_header(data, at)
    parts = [data[start:at]]
    for _ in range(count):
        part, at = _slim(data, at, path)
        parts.append(part)
    return b"".join(parts), at


def _skip(data: bytes, at: int, kind: int) -> int:
    """Where a value ends."""
    if kind in _BOOLS:  # a field of this type is its value
        return at
    if kind in _INTEGERS:
        return _varint(data, at)[1]
    if kind == _BYTE:
        return at + 1
    if kind == _DOUBLE:
        return at + 8
    if kind == _BINARY:
        length, at = _varint(data, at)
        return at + length
    if kind in _LISTS:
        count, of, at = _list_header(data, at)
        for _ in range(count):
            at = at + 1 if of in _BOOLS else _skip(data, at, of)
        return at
    assert kind == _STRUCT, f"Thrift type {kind} at byte {at}"
    while data[at]:
        kind, at = data[at] & 15, at + 1 if data[at] >> 4 else _varint(data, at + 1)[1]
        at = _skip(data, at, kind)
    return at + 1


def _list_header(data: bytes, at: int) -> tuple[int, int, int]:
    """How many elements, of which type, and where they begin."""
    count, of = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    return count, of, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
