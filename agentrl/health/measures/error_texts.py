"""Error texts of rollouts, grouped by what they have in common."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from agentrl.health.records import RolloutFacts

MOST_ERRORS = 4
"""Texts kept of one rollout."""
_CHARS = 160
_SHOWN = 3
_VARIABLE = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+|(?:/[\w.\-]+){2,}", re.IGNORECASE)
"""Parts that differ between two errors of one kind: addresses, ids, numbers, paths."""


def error_line(text: str) -> str:
    """The line of an error text that names what happened: of a traceback the last one.

    Example:
        >>> error_line("Traceback (most recent call last):\\n  ...\\nKeyError: 'x'\\n")
        "KeyError: 'x'"
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1 if "Traceback (most recent call last)" in text else 0][:_CHARS]


def grouped_errors(facts: Iterable[RolloutFacts]) -> list[tuple[str, int]]:
    """An example of each kind of error with how often it occurred, the most frequent first."""
    counts = Counter[str]()
    examples: dict[str, str] = {}
    for fact in facts:
        for text in fact.errors:
            kind = _VARIABLE.sub("#", text)
            counts[kind] += 1
            examples.setdefault(kind, text)
    return [(examples[kind], count) for kind, count in counts.most_common()]


def error_words(facts: Sequence[RolloutFacts]) -> str:
    """The most frequent errors, to follow the name of the rollouts that have them."""
    kinds = grouped_errors(facts)
    if not kinds:
        return ""
    rest = f"; {len(kinds) - _SHOWN} more kinds" if len(kinds) > _SHOWN else ""
    return ": " + "; ".join(f"{count} x {text}" for text, count in kinds[:_SHOWN]) + rest
