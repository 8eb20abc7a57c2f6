"""Numbers of turns as people count them: the model's turns, from 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def turn_numbers(rows: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[int]]:
    """For each turn of each row of a rollout, the assistant turns up to it, itself included.

    Example:
        >>> ask, say = {"role": "user"}, {"role": "assistant"}
        >>> turn_numbers([[ask, say, ask, say], [say]])
        [[0, 1, 1, 2], [3]]
    """
    count = 0
    found: list[list[int]] = []
    for turns in rows:
        numbers: list[int] = []
        for turn in turns:
            count += turn["role"] == "assistant"
            numbers.append(count)
        found.append(numbers)
    return found


def turn_name(role: str, number: int, of: int | None = None) -> str:
    """The place of a turn in words; empty before the first turn of the model.

    Args:
        role: of the turn.
        number: as `turn_numbers` has it.
        of: assistant turns of the rollout; None leaves them out.

    Example:
        >>> turn_name("assistant", 3, 7), turn_name("tool", 3, 7), turn_name("user", 0, 7)
        ('turn 3 of 7', 'after turn 3', '')
    """
    if role != "assistant":
        return f"after turn {number}" if number else ""
    return f"turn {number}" if of is None else f"turn {number} of {of}"


def turn_names(rows: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    """The place of each turn of each row of a rollout in words."""
    numbers = turn_numbers(rows)
    of = max((n for of_row in numbers for n in of_row), default=0)
    return [
        [turn_name(turn["role"], n, of) for turn, n in zip(turns, of_row, strict=True)]
        for turns, of_row in zip(rows, numbers, strict=True)
    ]


def assistant_turns(turns: Iterable[Mapping[str, Any]]) -> int:
    """The number of turns that the model took."""
    return sum(turn["role"] == "assistant" for turn in turns)
