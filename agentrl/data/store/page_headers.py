"""Headers of parquet pages, in Thrift's compact protocol: what Arrow reads and does not show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

_READ = 512
"""Bytes that hold a header without long statistics."""
_MOST = 2**16
_DEPTH = 8
_FIXED = {1: 0, 2: 0, 3: 1, 7: 8}
"""Bytes of the types that are as long as they are: true, false, a byte, a double."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageHeader:
    """The header of one page."""

    unpacked: int
    """Bytes of the page once it is decompressed."""
    packed: int
    """Bytes of it in the file, without this header."""
    values: int
    """Values in it, nulls included."""
    encoding: int
    """Number of the encoding of its values."""
    dictionary: bool
    """True for the words that other pages refer to."""


def read_header(file: BinaryIO, at: int) -> tuple[PageHeader, int]:
    """The header at an offset, and how many bytes it has.

    Raises:
        OSError: there is none, or one with numbers that cannot be.
    """
    for most in (_READ, _MOST):
        file.seek(at)
        try:
            fields, length = _struct(file.read(most), 0, 0)
            break
        except IndexError:
            continue
    else:
        raise OSError(f"no page header at byte {at}")
    # Field numbers of PageHeader in parquet.thrift: 5 and 8 are pages of data, 7 a dictionary.
    inner = next((fields[key] for key in (5, 8, 7) if isinstance(fields.get(key), dict)), {})
    encoding = inner.get(4 if 8 in fields else 2, 0)
    numbers = (fields.get(2, 0), fields.get(3, 0), inner.get(1, 0), encoding)
    if min(numbers) < 0:
        raise OSError(f"the page header at byte {at} has negative sizes")
    page = PageHeader(
        unpacked=numbers[0],
        packed=numbers[1],
        values=numbers[2],
        encoding=numbers[3],
        dictionary=7 in fields,
    )
    return page, length


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    fields: dict[int, Any] = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        step, kind = head >> 4, head & 15
        if step:
            number += step
        else:
            number, at = _integer(data, at)
        fields[number], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if depth > _DEPTH:
        raise OSError("a page header is nested too deeply")
    if kind in _FIXED:
        return None, at + _FIXED[kind]
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 8:
        length, at = _varint(data, at)
        return None, at + length
    if kind in (9, 10):
        count, of = data[at] >> 4, data[at] & 15
        at += 1
        if count == 15:
            count, at = _varint(data, at)
        for _ in range(count):
            if at >= len(data):
                raise IndexError(at)
            _, at = _value(data, at + (of in (1, 2)), of, depth + 1)
        return None, at
    if kind == 12:
        return _struct(data, at, depth + 1)
    raise OSError(f"a page header holds a value of the unknown type {kind}")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise OSError("a page header holds a number without an end")
