"""Parameters of a question to the inspector's server, read strictly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentrl.errors import RunError
from agentrl.inspect.pages.find_line import Question, parse_question
from agentrl.inspect.pages.task_cells import Range, parse_steps

_MOST_HITS = 1000
_TEXTS = ("kind", "task", "termination", "tool_status", "label", "like", "role", "sort")
_NUMBERS = ("reward_min", "reward_max", "score_min", "score_max", "lag_min", "gap_min")
"""Filters of a question by the kind of their value."""
_YES, _NO = ("1", "true", "yes"), ("0", "false", "no")


def required(query: Mapping[str, str], name: str) -> str:
    """A text that has to be there.

    Raises:
        ValueError: it is missing.
    """
    value = query.get(name)
    if not value:
        raise ValueError(f"the parameter {name!r} is missing; got {', '.join(query) or 'none'}")
    return value


def optional(query: Mapping[str, str], name: str) -> str | None:
    """A text, or None where it is missing or empty."""
    return query.get(name) or None


def whole(query: Mapping[str, str], name: str) -> int:
    """A number of 0 or more that has to be there.

    Raises:
        ValueError: it is missing or no such number.
    """
    required(query, name)
    found = whole_or_none(query, name)
    assert found is not None
    return found


def whole_or_none(query: Mapping[str, str], name: str) -> int | None:
    """A number of 0 or more.

    Raises:
        ValueError: it is no such number.
    """
    value = query.get(name)
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 15):
        raise ValueError(f"{name}: got {value[:50]!r}, expected a whole number of 0 or more")
    return int(value)


def number_or_none(query: Mapping[str, str], name: str) -> float | None:
    """A finite number, or None where it is missing.

    Raises:
        ValueError: it is none.
    """
    value = query.get(name)
    if not value:
        return None
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{name}: got {value[:50]!r}, expected a number, as in 0.5")
    return found


def flag(query: Mapping[str, str], name: str) -> bool | None:
    """Yes, no, or None where it is missing or empty.

    Raises:
        ValueError: it is neither.
    """
    value = query.get(name, "").lower()
    if value in ("", *_YES, *_NO):
        return None if not value else value in _YES
    raise ValueError(f"{name}: got {value[:50]!r}, expected 1 or 0")


def find_question(query: Mapping[str, str]) -> Question:
    """Which rollouts are looked for.

    Raises:
        ValueError: a filter has no value of its kind.
    """
    limit = whole_or_none(query, "limit")
    # The line of words is read as the terminal reads it; a field beside it wins.
    try:
        line = parse_question(query.get("q", ""))
        parse_question(f"sort:{query['sort']}" if query.get("sort") else "")
    except RunError as error:
        raise ValueError(str(error)) from error
    fields: dict[str, Any] = {name: optional(query, name) for name in _TEXTS}
    fields |= {name: number_or_none(query, name) for name in _NUMBERS}
    fields |= {name: flag(query, name) for name in ("truncated", "zero_advantage")}
    fields |= {name: whole_or_none(query, name) for name in ("step_min", "step_max")}
    fields["limit"] = min(_MOST_HITS, 50 if limit is None else limit)
    fields["offset"] = whole_or_none(query, "offset")
    return replace(line, **{name: value for name, value in fields.items() if value is not None})


def steps_or_none(query: Mapping[str, str], name: str) -> Range | None:
    """A range of steps, as in `3` or `1-5`, or None where it is missing.

    Raises:
        ValueError: it is none.
    """
    value = query.get(name)
    return parse_steps(name, value) if value else None
