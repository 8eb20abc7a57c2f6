"""Rows of dataset files, one at a time, each with the words that name it in a message."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.data.tasks.merged_nulls import MergedNulls
from agentrl.errors import DataError
from agentrl.machine.files import require_plain
from agentrl.machine.inside import TRUST, trusted


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """One row of a source, not yet looked at."""

    where: str
    """File and row, or what else names it in a message."""
    values: Any
    """A mapping of column names, or a finished `Task`; anything else is refused later."""
    base: Path | None = None
    """Folder that relative paths in the row start from; None for the working directory."""
    flat: bool = False
    """True where a cell is text alone, so that what is nested stands there as JSON."""


def file_kind(path: Path) -> str | None:
    """The suffix that decides how a file is read, or None when it is no dataset file.

    Example:
        >>> file_kind(Path("HumanEval.jsonl.gz"))
        '.jsonl'
    """
    name = path.name.lower()
    return next((s.removesuffix(".gz") for s in SUFFIXES if name.endswith(s)), None)


def read_file(path: Path) -> Generator[SourceRow]:
    """The rows of one file.

    Raises:
        DataError: unreadable, or not what its suffix says; names the row where that is known.
    """
    kind = file_kind(path)
    if kind is None:
        raise DataError(f"{path}: unknown kind of file; expected one of {', '.join(SUFFIXES)}")
    try:
        for row in _READERS[kind](require_plain(path)):
            yield replace(row, base=path.parent)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def read_files(paths: Iterable[Path]) -> Generator[SourceRow]:
    """The rows of several files, one file after the other."""
    for path in paths:
        yield from read_file(path)


def directory_files(directory: Path, split: str) -> list[Path]:
    """The files of a directory that belong to a split.

    Files belong to a split by their name (`train.jsonl`, `train-00000-of-00002.parquet`) or by the
    folder they are in (`train/part.csv`). Where no name speaks of any split, all files belong.

    Raises:
        DataError: no dataset files, or none of this split; lists what is there.
    """
    files = [
        path
        for path in sorted(directory.rglob("*"))
        if path.is_file() and file_kind(path) and not _hidden(path.relative_to(directory))
    ]
    if not files:
        raise DataError(
            f"{directory}: no dataset files in this folder; expected {', '.join(SUFFIXES)}"
        )
    names = {path: _split_of(path.relative_to(directory), split) for path in files}
    if not any(names.values()):
        return files
    chosen = [path for path, name in names.items() if name == split]
    if not chosen:
        found = sorted({name for name in names.values() if name})
        raise DataError(f"{directory}: no files of split {split!r}; splits here: {found}")
    return chosen


_KNOWN_SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval", "heldout")


def _hidden(relative: Path) -> bool:
    return any(part.startswith((".", "_")) for part in relative.parts)


def _split_of(relative: Path, wanted: str) -> str | None:
    stem = relative.name.split(".")[0]
    for name in (wanted, *_KNOWN_SPLITS):
        if stem == name or stem.startswith((f"{name}-", f"{name}_")) or name in relative.parts[:-1]:
            return name
    return None


def _open(path: Path) -> BinaryIO | gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")


def _read_lines(path: Path) -> Generator[SourceRow]:
    with _open(path) as file:
        most = sys.maxsize if trusted() else _LINE_BYTES
        for number, line in enumerate(iter(lambda: file.readline(most), b""), start=1):
            where = f"{path}, line {number}"
            if len(line) == most:
                raise DataError(f"{where}: more than {most} bytes; {_LARGE}")
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{where}: broken JSON: {error.msg} at column {error.colno}: {_excerpt(line)}"
                ) from None
            except (UnicodeDecodeError, RecursionError, ValueError) as error:
                raise DataError(f"{where}: broken JSON: {error}: {_excerpt(line)}") from None
            yield SourceRow(where=where, values=values)


def _read_json(path: Path) -> Generator[SourceRow]:
    data = bytearray()
    with _open(path) as file:
        while block := file.read(2**20):
            data += block
            if len(data) > _FILE_BYTES and not trusted():
                raise DataError(f"{path}: more than {_FILE_BYTES} bytes; {_LARGE}")
    try:
        document = json.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            # Several documents in one file: JSON lines under the wrong suffix, as is common.
            yield from _read_lines(path)
            return
        raise DataError(
            f"{path}, line {error.lineno}: broken JSON: {error.msg} at column {error.colno}"
        ) from None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise DataError(f"{path}: broken JSON: {error}") from None
    if isinstance(document, dict):
        lists = [value for value in document.values() if isinstance(value, list)]
        # One list beside a few words about it, as in {"version": 1, "data": [...]}, or one row.
        document = lists[0] if len(lists) == 1 and "prompt" not in document else [document]
    if not isinstance(document, list):
        raise DataError(
            f"{path}: expected a list of rows, or an object that holds one, got "
            f"{type(document).__name__}"
        )
    for number, values in enumerate(document, start=1):
        yield SourceRow(where=f"{path}, row {number}", values=values)


def _read_csv(path: Path) -> Generator[SourceRow]:
    # The module's own limit of 128 KiB a cell is process-wide, and a prompt may be longer.
    most = sys.maxsize if trusted() else _LINE_BYTES
    csv.field_size_limit(most)
    with _open(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        lines = iter(lambda: text.readline(most), "")
        reader = csv.DictReader(lines, restkey=_REST, strict=True)
        try:
            for number, values in enumerate(reader, start=1):
                where = f"{path}, row {number}"
                if _REST in values:
                    raise DataError(
                        f"{where}: {len(values[_REST])} cells more than the header has columns; "
                        "quote cells that hold commas"
                    )
                missing = [name for name, cell in values.items() if cell is None]
                if missing:
                    raise DataError(f"{where}: no cells for {missing}; the row is too short")
                yield SourceRow(where=where, values=values, flat=True)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}, line {reader.line_num}: broken CSV: {error}") from None


def _read_parquet(path: Path) -> Generator[SourceRow]:
    try:
        with pq.ParquetFile(path) as file:
            number, nulls = 0, MergedNulls(str(path), file.schema_arrow)
            for batch in file.iter_batches(batch_size=256):
                for values in batch.to_pylist():
                    number += 1
                    yield SourceRow(where=f"{path}, row {number}", values=nulls.clean(values))
            nulls.log()
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a readable parquet file: {error}") from error


_LINE_BYTES = 2**28
"""Of a line, or of a cell; a row of pictures in base64 has some megabytes."""
_FILE_BYTES = 2**32
"""Of a file that is read at once, unpacked."""
_LARGE = f"set {TRUST}=1 if it is yours"
_REST = "\0rest"
_READERS: Mapping[str, Callable[[Path], Generator[SourceRow]]] = {
    ".jsonl": _read_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
SUFFIXES = (*_READERS, ".jsonl.gz", ".json.gz", ".csv.gz")
"""Suffixes of dataset files."""


def _excerpt(line: bytes) -> str:
    return repr(line[:80].decode("utf-8", "replace"))
