"""The answer of a query, and the same as text that other programs read."""

from __future__ import annotations

import csv
import decimal
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from agentrl.data.store.columns import unescape


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Rows that a query gave, and how long it took."""

    table: pa.Table
    """The rows, in Arrow's types; text as stored, see `agentrl.data.store.columns.escape`."""
    took_s: float
    """Wall time in seconds."""
    truncated: bool
    """Whether there were more rows than the limit."""
    notes: tuple[str, ...] = ()
    """Files that were left out, and why."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns; a name may stand there twice."""
        return list(self.table.column_names)

    def rows(self) -> list[list[Any]]:
        """Rows in Python's types: text as the run wrote it, decimals as numbers."""
        columns = [
            [_plain(value) for value in _values(self.table.column(index))]
            for index in range(self.table.num_columns)
        ]
        return [list(row) for row in zip(*columns, strict=True)]


def answer_as_json(answer: Answer) -> Iterator[str]:
    """One JSON array of objects, a row a line; of columns with one name the later get a number."""
    names = _distinct(answer.columns)
    before = "[\n"
    for row in answer.rows():
        line = json.dumps(finite(dict(zip(names, row, strict=True))), default=str)
        yield f"{before}{line}"
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def answer_as_csv(answer: Answer) -> Iterator[str]:
    """Comma-separated values below a line of names; nested values as JSON."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(answer.columns)
    for row in answer.rows():
        writer.writerow([_cell(value) for value in row])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def finite(value: Any) -> Any:
    """NaN and infinities as null, since JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def _cell(value: Any) -> Any:
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(finite(value), default=str)
    return value


def _distinct(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        number, unique = 2, name
        while unique in found:
            unique, number = f"{name}_{number}", number + 1
        found.append(unique)
    return found


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        # A date outside of the years 1 to 9999, infinity among them: Python has none.
        return column.cast(pa.string()).to_pylist()


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return unescape(value)
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list):
        # Arrow gives a map as a list of pairs, and pairs for nothing else.
        if value and all(isinstance(item, tuple) for item in value):
            return {_plain(key): _plain(item) for key, item in value}
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
