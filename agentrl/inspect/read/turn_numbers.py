"""Numbers of turns as people count them: the model's turns, from 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl.inspect.read.safe_json import json_value


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


def repeated_turns(rows: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    """For each turn of each row, that it does the same as an earlier one, in words; else empty.

    Calls are compared by name and arguments, and turns without calls by their text.

    Example:
        >>> turns = [{"role": "assistant", "text": text, "tool_calls": []} for text in "aba"]
        >>> repeated_turns([turns])
        [['', '', 'same answer as turn 1']]
    """
    first: dict[tuple[str, str], int] = {}
    found: list[list[str]] = []
    for turns, numbers in zip(rows, turn_numbers(rows), strict=True):
        found.append([])
        for turn, number in zip(turns, numbers, strict=True):
            what, key = _deed(turn)
            before = first.setdefault((what, key), number) if key else number
            found[-1].append(f"same {what} as turn {before}" if before != number else "")
    return found


def _deed(turn: Mapping[str, Any]) -> tuple[str, str]:
    """What a turn of the model does, in a word, and a key that equal deeds share."""
    if turn["role"] != "assistant":
        return "", ""
    calls = turn["tool_calls"]
    if not calls:
        return "answer", turn["text"].strip()
    given = [_arguments(call) for call in calls]
    # Without arguments, as those of a call that could not be read, the text itself is compared.
    named = zip(calls, given, strict=True)
    key = str([(call["name"], str(of or call["raw"])) for call, of in named])
    code = all(isinstance(of, Mapping) and "code" in of for of in given)
    return ("code" if code else "call" if len(calls) == 1 else "calls"), key


def _arguments(call: Mapping[str, Any]) -> Any:
    """Of a call as it is stored, in JSON, or as it was recorded."""
    found = call["arguments"]
    return json_value(found) if isinstance(found, str) else found


def assistant_turns(turns: Iterable[Mapping[str, Any]]) -> int:
    """The number of turns that the model took."""
    return sum(turn["role"] == "assistant" for turn in turns)
