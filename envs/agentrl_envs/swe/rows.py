"""Rows of a data set file, each with the words that name it in a message."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import DataError

KINDS = (".jsonl", ".jsonl.gz", ".json", ".parquet")
"""Suffixes of readable files."""


def read_rows(path: Path, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """File and row, and the row, for each row.

    Args:
        path: a file of one of `KINDS`, or a folder of them; of a folder those whose name begins
            with the split, where any does.
        split: name of the split.

    Raises:
        DataError: no such file, no rows, or a row that is no object.
    """
    count = 0
    for file in _files(path, split):
        for where, row in _rows(file):
            if not isinstance(row, Mapping):
                raise DataError(f"{where}: expected an object, got {type(row).__name__}")
            count += 1
            yield where, row
    if not count:
        raise DataError(f"{path}: no rows")


def absolute(path: str | Path, base_dir: Path | None) -> Path:
    """A path of a config, from the folder that its relative paths start from."""
    return (base_dir or Path.cwd()) / Path(path).expanduser()


def _files(path: Path, split: str) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(
            f"{path} does not exist; expected a file ({', '.join(KINDS)}) or a folder of them. "
            "Relative paths start from the folder of the config"
        )
    files = sorted(file for file in path.rglob("*") if file.name.endswith(KINDS))
    if not files:
        raise DataError(f"{path}: no files here; expected {', '.join(KINDS)}")
    named = [file for file in files if file.name.startswith(split)]
    return named or files


def _rows(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        if file.name.endswith(".parquet"):
            yield from _parquet(file)
        elif file.name.endswith(".json"):
            document = json.loads(file.read_bytes())
            rows = document if isinstance(document, list) else [document]
            yield from ((f"{file}, row {n}", row) for n, row in enumerate(rows, start=1))
        else:
            yield from _lines(file)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{file}, line {error.lineno}: not JSON: {error.msg}") from None


def _lines(file: Path) -> Iterator[tuple[str, Any]]:
    with gzip.open(file) if file.name.endswith(".gz") else file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                where = f"{file}, line {number}"
                try:
                    yield where, json.loads(line)
                except ValueError as error:
                    raise DataError(f"{where}: not JSON: {error}") from None


def _parquet(file: Path) -> Iterator[tuple[str, Any]]:
    # Imported here: it takes a quarter of a second.
    parquet = importlib.import_module("pyarrow.parquet")
    arrow = importlib.import_module("pyarrow")
    number = 0
    try:
        with parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=64):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file}, row {number}", row
    except arrow.ArrowException as error:
        raise DataError(f"{file}: not a readable parquet file: {error}") from error
