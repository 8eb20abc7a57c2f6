"""The explanation of a reward as parts with titles: the same words on the page and in terminals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentrl.inspect.read.safe_json import shown
from agentrl.types import Explanation

TITLES = {
    "reason": "reason",
    "reference": "reference answer",
    "tests": "tests",
    "grader_output": "grader output",
}
"""Fields of `Explanation` in the order in which they are read, with what views call them."""

_PASSED = re.compile(r"^\s*(?:passed|ok)\b", re.IGNORECASE | re.MULTILINE)
_FAILED = re.compile(r"^\s*(?:failed|fail|error)\b[:\s]*(.+)", re.IGNORECASE | re.MULTILINE)


def passed_tests(stored: Mapping[str, Any] | None) -> int:
    """Lines of the tests of a stored explanation that begin with `passed` or `ok`."""
    return len(_PASSED.findall((stored or {}).get("tests") or ""))


def grading(parts: Sequence[Mapping[str, Any]]) -> str:
    """The first line of the reason, after the first test that failed where it does not name it.

    Args:
        parts: as `explanation_parts` gives them.

    Example:
        >>> grading([{"field": "tests", "text": "passed f(1)\\nFAILED f(2): returned 3"},
        ...          {"field": "reason", "text": "1 of 2 tests passed."}])
        'failed f(2): returned 3; 1 of 2 tests passed.'
    """
    texts = {part["field"]: part["text"] for part in reversed(parts)}
    reason = texts.get("reason", "").partition("\n")[0]
    failed = _FAILED.search(texts.get("tests", ""))
    if failed is None or _call_of(failed[1]) in reason:
        return reason
    return f"failed {failed[1].rstrip('.')}" + (f"; {reason}" if reason else "")


def _call_of(test: str) -> str:
    """The call that a line about a test names: `f(2)` of `hidden f(2): returned 3`."""
    return test.partition(": ")[0].removeprefix("public ").removeprefix("hidden ")


def explanation_parts(stored: Explanation | Mapping[str, Any] | None) -> list[dict[str, str]]:
    """`{"field", "title", "text"}` of every text that there is; none without an explanation.

    Args:
        stored: the record, or its column of a trajectory file.
    """
    texts = asdict(stored) if isinstance(stored, Explanation) else stored or {}
    return [
        {"field": field, "title": title, "text": shown(text)}
        for field, title in TITLES.items()
        if (text := texts.get(field))
    ]
