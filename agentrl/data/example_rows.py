"""Rows of examples to learn from: columns under the names of a layout, numbers, tools and ids.

Preference pairs and conversations are read from the same files and share what is here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.config.schema import DatasetSection
from agentrl.data.messages import prompt_of, with_system
from agentrl.data.plain import plain
from agentrl.data.tasks.files import SourceRow
from agentrl.data.tasks.formats import ABSENT, ASKED, asked_in
from agentrl.data.tasks.rows import content_hash, value_at
from agentrl.data.tasks.sources import open_source
from agentrl.errors import DataError, choices
from agentrl.types import Message

PROMPTS = ("prompt", *ASKED, "context")
"""Columns that may hold the prompt."""
ANSWERS = ("completion", "output", "response", "answer", "solution")
"""Columns that may hold what the assistant wrote."""


def read_rows(
    section: DatasetSection,
    add: Callable[[SourceRow], None],
    *,
    base: Path | None,
    limit: int | None,
    collect_broken: bool,
    what: str,
) -> tuple[int, tuple[str, ...]]:
    """Hand each row of a source on, with lists in place of arrays.

    Args:
        section: the source.
        add: takes a row.
        base: folder that relative paths start from; default the working directory.
        limit: read only the first so many rows.
        collect_broken: go on behind a row that `add` refuses.
        what: kind of the source, for messages.

    Returns:
        Number of rows that were read, and errors of the broken ones.

    Raises:
        DataError: there are no rows, or one is broken.
    """
    count, broken = 0, list[str]()
    with contextlib.closing(open_source(section, base=base)) as rows:
        for row in itertools.islice(rows, limit):
            count += 1
            try:
                found = SourceRow(where=row.where, values=listed(row.values))
                _refuse_images(found)
                add(found)
            except DataError as error:
                if not collect_broken:
                    raise
                broken.append(str(error))
    if not count:
        raise DataError(f"{what} source {section.source!r}, split {section.split!r}: no rows")
    return count, tuple(broken)


def _refuse_images(row: SourceRow) -> None:
    """Refuse a row whose images would not be seen."""
    if not isinstance(row.values, Mapping):
        return
    for name in ("images", "image"):
        # A text may name an image of another kind, as that of a container.
        if isinstance(row.values.get(name), (Mapping, list, tuple, bytes)) and row.values[name]:
            raise DataError(
                f"{row.where}: column {name!r} holds images, which are read from our own rollouts "
                "alone: record them (agentrl rollout --solutions) and give run:FOLDER, or take "
                "the column out to learn from the text"
            )


class RowIds:
    """Gives each example an id and keeps two from having the same one."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}
        self._next: dict[str, int] = {}

    def add(self, name: str, where: str) -> None:
        """Take an id that the source gave.

        Raises:
            DataError: another example has it; names both.
        """
        if name in self._places:
            raise DataError(
                f"{where}: id {name!r} was used before, by {self._places[name]}; ids must be "
                "unique in a dataset"
            )
        self._places[name] = where

    def new(self, name: str) -> str:
        """`name`, or with `-2`, `-3` ... behind it, whichever is free."""
        if name not in self._places:
            return name
        # From where the last search of this name ended: many rows may have the same.
        for number in itertools.count(self._next.get(name, 2)):
            if f"{name}-{number}" not in self._places:
                self._next[name] = number
                return f"{name}-{number}"
        raise AssertionError("numbers have no end")


def row_name(row: SourceRow) -> str:
    """The id in a row, or a hash of its content."""
    given = row.values.get("id") or row.values.get("prompt_id")
    return str(given) if given else content_hash(row.values)


def listed(value: Any) -> Any:
    """Arrays and tuples, as functions and pandas give them, as lists."""
    if isinstance(value, Mapping):
        return {key: listed(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [listed(inner) for inner in value]
    return listed(value.tolist()) if hasattr(value, "tolist") else value


def mapped(
    row: SourceRow, columns: Mapping[str, str], *, instead: Mapping[str, Sequence[str]]
) -> SourceRow:
    """A row with the columns that the user named under the names of a layout.

    Args:
        row: as the source gives it.
        columns: name in the layout to column, or to a path into nested ones.
        instead: by mapped name, the columns that are then not read.

    Raises:
        DataError: there is no such column; names those there are.
    """
    if not columns or not isinstance(row.values, Mapping):
        return row
    values = dict(row.values)
    for name in columns:
        for other in instead.get(name, ()):
            values.pop(other, None)
    for name, path in columns.items():
        value = value_at(row.values, path)
        if value is ABSENT:
            known = choices(path, list(map(str, row.values)))
            raise DataError(f"{row.where}: no column for the {name}: {known}")
        values[name] = value
    return SourceRow(where=row.where, values=values)


def first_of(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Content of the first of these columns that is not null; `ABSENT` where there is none."""
    return next((values[name] for name in names if values.get(name) is not None), ABSENT)


def there(values: Mapping[str, Any], *names: str) -> bool:
    """Return true if no column is null: joined tables have those of every layout, mostly empty."""
    return all(values.get(name) is not None for name in names)


def prompt_in(row: SourceRow) -> tuple[Message, ...]:
    """The prompt of a row, with its column `system`, and `input` beside `instruction`.

    Raises:
        DataError: none, an empty one, or several columns that may be it.
    """
    values = row.values
    several = [name for name in PROMPTS if values.get(name) not in (None, "", [])]
    if len(several) > 1:
        raise DataError(
            f"{row.where}: each of {several} may be the prompt; name one with --column "
            "prompt=NAME, and the others will not be read"
        )
    given = asked_in(values, several[0]) if several else first_of(values, PROMPTS)
    prompt = prompt_of(row.where, given)
    said = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
    return with_system(row.where, values.get("system"), said)


def tools_in(row: SourceRow) -> tuple[Mapping[str, Any], ...]:
    """The column `tools`: OpenAI function schemas, or the functions alone, as a list or its JSON.

    Nulls inside a list are left out: parquet gives every tool the parameters of all others so.

    Raises:
        DataError: something else; names the row and what was there.
    """
    given = row.values.get("tools")
    value: Any = given
    if isinstance(given, str) and given.strip():
        try:
            value = plain(json.loads(given))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{row.where}: tools is broken JSON: {error}") from None
    elif isinstance(given, list):
        value = _without_nulls(plain(given))
    if not value:
        return ()
    if not isinstance(value, list):
        raise DataError(f"{row.where}: tools is {ascii(given)[:60]}; expected a list of schemas")
    return tuple(_schema(f"{row.where}: tool {number}", tool) for number, tool in enumerate(value))


def _schema(where: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):  # then it is refused as what it is
            value = json.loads(value)
    function = value.get("function", value) if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(name, str) or not name:
        raise DataError(
            f'{where} is {ascii(value)[:80]}; expected {{"type": "function", "function": '
            '{"name": ..., "description": ..., "parameters": {...}}}'
        )
    return value if "function" in value else {"type": "function", "function": value}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def own_number(
    row: SourceRow, name: str, low: float = -math.inf, high: float = math.inf
) -> float | None:
    """A number that a row may give; None where it does not.

    Raises:
        DataError: no finite number, or none in [low, high].
    """
    value = row.values.get(name)
    if value is None or value == "":
        return None
    number = finite(row.where, name, value)
    if not low <= number <= high:
        raise DataError(f"{row.where}: {name} is {number:g}; expected one in [{low:g}, {high:g}]")
    return number


def weight_of(row: SourceRow) -> float:
    """The weight of a row, 1 where it gives none."""
    weight = own_number(row, "weight", 0.0)
    return 1.0 if weight is None else weight


def finite(where: str, name: str, value: Any) -> float:
    """A value as a number.

    Raises:
        DataError: it is none, or not finite.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: {name} is {ascii(value)[:60]}; expected a finite number")
    return number
