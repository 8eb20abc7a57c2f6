"""Charts and tables as data, each with a question and its answer; drawn by `draw`.

Values are multiples of a unit, and charts have a line or a tick at each of these, so a value can be
read exactly and an answer is right or wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Literal

Kind = Literal["bars", "line", "table"]

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
NAMES = (
    "Ada", "Bo", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "June", "Kim", "Lou",
    "Mia", "Nils", "Ola", "Pia",
)  # fmt: skip
COLUMNS = ("apples", "books", "coins", "disks", "eggs", "forks", "globes", "hats")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingLevel:
    """Sizes and questions of the sheets of a level."""

    kinds: tuple[Kind, ...]
    """Sheets in turn."""
    names: int
    """Bars, points or lines of a table."""
    columns: int
    """Series of a chart or columns of a table."""
    questions: tuple[str, ...]
    """Keys of `_QUESTIONS`."""
    shrink: int = 1
    """The sheet is shown so many times smaller than it is drawn, and `zoom` shows it as drawn."""


LEVELS: Mapping[int, ReadingLevel] = {
    1: ReadingLevel(kinds=("bars",), names=4, columns=1, questions=("value", "largest")),
    2: ReadingLevel(
        kinds=("bars", "table"), names=5, columns=1, questions=("value", "smallest", "difference")
    ),
    3: ReadingLevel(
        kinds=("line", "table", "bars"),
        names=6,
        columns=2,
        questions=("value", "largest", "difference", "steepest"),
    ),
    4: ReadingLevel(
        kinds=("table", "bars"),
        names=8,
        columns=3,
        questions=("value", "total", "steepest", "above"),
        shrink=2,
    ),
    5: ReadingLevel(
        kinds=("table", "line"),
        names=12,
        columns=6,
        questions=("difference", "total", "above", "largest"),
        shrink=2,
    ),
}
"""Difficulty: more to read, several series, sums and counts, and print too small without `zoom`."""

UNIT = 5
"""Values are multiples of it."""
_TOP = 20
"""Units of the largest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One chart or table, and what is asked of it."""

    kind: Kind
    """Chart or table."""
    names: tuple[str, ...]
    """Bars, points or lines of the table, in their order."""
    columns: tuple[str, ...]
    """Series of a chart, or columns of a table."""
    values: tuple[tuple[int, ...], ...]
    """By column, then by name."""
    question: str
    """In words."""
    answer: str
    """A whole number or one of `names`."""
    column: int
    """The column that the question is about."""
    places: tuple[int, ...]
    """The names that have to be read for it."""
    shrink: int
    """As in `ReadingLevel`."""


def draw_sheet(*, level: int, seed: str) -> Sheet:
    """The sheet of a seed: the same on every machine."""
    rules, draw = LEVELS[level], Random(seed)
    kind = draw.choice(rules.kinds)
    names = MONTHS[: rules.names] if kind == "line" else tuple(draw.sample(NAMES, rules.names))
    # More than three series in one chart cannot be told apart.
    count = min(rules.columns, 3) if kind != "table" else rules.columns
    columns = tuple(draw.sample(COLUMNS, count))
    values = _draw_values(draw, len(names), count)
    column = draw.randrange(count)
    ask = _QUESTIONS[draw.choice(rules.questions)]
    asked = ask(draw, names, values[column])
    noun = "month" if kind == "line" else "name"
    return Sheet(
        kind=kind,
        names=names,
        columns=columns,
        values=values,
        question=asked.text.format(of=columns[column], noun=noun),
        answer=str(asked.answer),
        column=column,
        places=asked.places or tuple(range(len(names))),
        shrink=rules.shrink,
    )


def _draw_values(draw: Random, names: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """Values by column, without two that are equal in a column or for a name.

    So the largest is one, a guess is seldom right, and no line of a chart hides another one.
    """
    made: list[tuple[int, ...]] = []
    while len(made) < columns:
        drawn = tuple(UNIT * step for step in draw.sample(range(1, _TOP + 1), names))
        alike = any(a == b for other in made for a, b in zip(drawn, other, strict=True))
        if not alike and _one_largest_rise(drawn):
            made.append(drawn)
    return tuple(made)


def _rises_of(values: Sequence[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(values)]


def _one_largest_rise(values: Sequence[int]) -> bool:
    rises = _rises_of(values)
    return max(rises) > 0 and rises.count(max(rises)) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetQuestion:
    """A question about one column."""

    text: str
    """With `{of}` for the column and `{noun}` for what its names are."""
    answer: int | str
    """A value, or one of the names."""
    places: tuple[int, ...] = ()
    """The names that have to be read; none stands for all."""


def _value(draw: Random, names: Sequence[str], values: Sequence[int]) -> SheetQuestion:
    at = draw.randrange(len(names))
    text = f"What is the value of {{of}} for {names[at]}?"
    return SheetQuestion(text=text, answer=values[at], places=(at,))


def _largest(draw: Random, names: Sequence[str], values: Sequence[int]) -> SheetQuestion:
    text = "Which {noun} has the largest value of {of}?"
    return SheetQuestion(text=text, answer=names[values.index(max(values))])


def _smallest(draw: Random, names: Sequence[str], values: Sequence[int]) -> SheetQuestion:
    text = "Which {noun} has the smallest value of {of}?"
    return SheetQuestion(text=text, answer=names[values.index(min(values))])


def _difference(draw: Random, names: Sequence[str], values: Sequence[int]) -> SheetQuestion:
    less, more = sorted(draw.sample(range(len(names)), 2), key=lambda at: values[at])
    text = f"By how much is {{of}} for {names[more]} larger than for {names[less]}?"
    return SheetQuestion(text=text, answer=values[more] - values[less], places=(less, more))


def _total(draw: Random, names: Sequence[str], values: Sequence[int]) -> SheetQuestion:
    chosen = tuple(sorted(draw.sample(range(len(names)), 3)))
    text = f"What is the sum of {{of}} for {', '.join(names[at] for at in chosen)}?"
    return SheetQuestion(text=text, answer=sum(values[at] for at in chosen), places=chosen)


def _above(draw: Random, names: Sequence[str], values: Sequence[int]) -> SheetQuestion:
    bound = UNIT * draw.randrange(_TOP // 4, _TOP * 3 // 4)
    text = f"How many {{noun}}s have a value of {{of}} above {bound}?"
    return SheetQuestion(text=text, answer=sum(value > bound for value in values))


def _steepest(draw: Random, names: Sequence[str], values: Sequence[int]) -> SheetQuestion:
    rises = _rises_of(values)
    text = "At which {noun} is {of} up most against the {noun} just before it?"
    return SheetQuestion(text=text, answer=names[rises.index(max(rises)) + 1])


_QUESTIONS: Mapping[str, Callable[[Random, Sequence[str], Sequence[int]], SheetQuestion]] = {
    "value": _value,
    "largest": _largest,
    "smallest": _smallest,
    "difference": _difference,
    "total": _total,
    "above": _above,
    "steepest": _steepest,
}
