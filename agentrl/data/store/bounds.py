"""Bounds of parquet files that somebody else may have made, checked before anything is decoded.

A few megabytes can stand for terabytes: pages of zeros, runs of one value, one long word that a
dictionary repeats. A footer can claim less than its pages hold, so the pages' own headers are
read, which are what the decoder goes by.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.data.store.page_headers import PageHeader, read_header
from agentrl.errors import UntrustedFile
from agentrl.machine.inside import TRUST, trusted

_SMALL = 2**28
"""Bytes that any file may come to in memory, however well it is compressed."""
_RATIO = 100
"""Bytes in memory for each byte of a larger file. Runs of many samples of one long prompt compress
to a fiftieth; those of text that repeats itself are written larger than they need be."""
_GROUP = 2**31
"""Bytes in memory of one row group, the least that is read at once; ours have a few megabytes."""
_ROWS = 10**7
"""Table rows of a file; a step has a few thousand."""
_FOOTER = 2**24
"""Bytes of a footer; a file of ten gigabytes has five megabytes."""
_PAGES = 500_000
"""Pages of a file, each of which is looked at."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_MARGIN = 3
"""Times that a file of ours is larger than its bound asks for, since a reader counts otherwise."""
_OFFSET = 4
"""Bytes beside each text."""
_DICTIONARY = (2, 8)
"""Encodings whose values are numbers of words in a dictionary."""
_SHARED = 7
"""Encoding whose words may begin with all of the word before."""


def open_parquet(path: Path, *, verify: bool = True) -> pq.ParquetFile:
    """Open a file of a run, if what it holds is bounded.

    Args:
        path: of the file.
        verify: whether checksums of pages are compared where they are read.

    Raises:
        FileNotFoundError: it is gone.
        UntrustedFile: no plain file, or more in it than a run of ours would have; an `OSError`.
        OSError, pa.ArrowException: it is torn or damaged.
    """
    status = path.stat()
    # Opening a pipe under the name of a file would wait for ever.
    if not stat.S_ISREG(status.st_mode):
        raise UntrustedFile("not a file")
    if not trusted() and (reason := _why_too_large(path, status.st_mtime_ns, status.st_size)):
        raise UntrustedFile(f"{reason}; set {TRUST}=1 if you made it")
    return pq.ParquetFile(path, page_checksum_verification=verify)


def least_size(unpacked: int) -> int:
    """Bytes that a file must have to be read, by what it comes to in memory; 0 for a small one."""
    return 0 if _MARGIN * unpacked <= _SMALL else _MARGIN * unpacked // _RATIO


def why_not_read(error: Exception) -> str:
    """One line for a file that was left out."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return first if isinstance(error, UntrustedFile) else f"torn or damaged: {first}"


@lru_cache(maxsize=10_000)
def _why_too_large(path: Path, _changed: int, size: int) -> str:
    """Why a file is not decoded; empty if it may be. Worked out once while it stays as it is."""
    with path.open("rb") as file:
        if size >= 8:
            file.seek(-8, os.SEEK_END)
            footer, mark = int.from_bytes(file.read(4), "little"), file.read(4)
            if footer > _FOOTER and mark == b"PAR1":
                return f"its footer has {footer} bytes, expected at most {_FOOTER}"
        with pq.ParquetFile(file) as parquet:
            return _judge(file, parquet.metadata, size)


def _judge(file: BinaryIO, metadata: pq.FileMetaData, size: int) -> str:
    if metadata.num_rows > _ROWS:
        return f"it has {metadata.num_rows} rows, expected at most {_ROWS}"
    allowed = max(_SMALL, _RATIO * size)
    total, pages = 0, 0
    for number in range(metadata.num_row_groups):
        group, here, fewest = metadata.row_group(number), 0, None
        for column in range(group.num_columns):
            read = _read_column(file, group.column(column), metadata.schema.column(column), size)
            here, pages = here + read.size, pages + read.pages
            fewest = read.values if fewest is None else min(fewest, read.values)
            if total + here > allowed or here > _GROUP:
                of = f"row group {number}" if here > _GROUP else f"a file of {size} bytes"
                most = _GROUP if here > _GROUP else allowed
                return (
                    f"{of} would take more than {most / 2**20:.0f} MiB of memory, which no run of "
                    "ours does"
                )
            if pages > _PAGES:
                return f"it has more than {_PAGES} pages"
        if fewest is not None and group.num_rows > fewest:
            return f"row group {number} claims {group.num_rows} rows and holds {fewest}"
        total += here
    return ""


@dataclass(slots=True)
class _Column:
    """What decoding a column of a row group comes to."""

    size: int = 0
    """Bytes in memory, at most."""
    values: int = 0
    """Values, nulls included."""
    pages: int = 0
    """Pages that were looked at."""


def _read_column(file: BinaryIO, chunk: Any, leaf: Any, size: int) -> _Column:
    found, longest = _Column(), 0
    text = chunk.physical_type == "BYTE_ARRAY"
    width = _OFFSET if text else _WIDTHS.get(chunk.physical_type, leaf.length or 0)
    for at, page in _pages(file, chunk, size):
        found.pages += 1
        if page.dictionary:
            longest = _longest_word(file, at, page, chunk.compression) if text else 0
            found.size += page.unpacked
            continue
        found.values += page.values
        found.size += page.values * width
        if text and page.encoding in _DICTIONARY:
            found.size += page.values * longest
        elif text:
            found.size += page.unpacked * (page.values if page.encoding == _SHARED else 1)
        # What a page unpacks to is held while it is decoded, one page at a time.
        if page.unpacked > _SMALL:
            found.size += page.unpacked
    return found


def _pages(file: BinaryIO, chunk: Any, size: int) -> Iterator[tuple[int, PageHeader]]:
    """The pages of a column, each with the offset of its data."""
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < at:
        at = chunk.dictionary_page_offset
    end = min(at + chunk.total_compressed_size, size)
    while 0 <= at < end:
        page, length = read_header(file, at)
        at += length
        yield at, page
        at += page.packed


def _longest_word(file: BinaryIO, at: int, page: PageHeader, codec: str) -> int:
    """Bytes of the longest word of a dictionary; all of it where it cannot be looked into."""
    if page.unpacked > 2**22 or page.values > 2**17:
        return page.unpacked
    file.seek(at)
    data = file.read(page.packed)
    try:
        if codec != "UNCOMPRESSED":
            data = pa.decompress(data, page.unpacked, codec=codec.lower(), asbytes=True)
    except (pa.ArrowException, ValueError, OSError):
        return page.unpacked
    place = longest = 0
    while place + 4 <= len(data):
        length = int.from_bytes(data[place : place + 4], "little")
        longest, place = max(longest, length), place + 4 + length
    return longest
