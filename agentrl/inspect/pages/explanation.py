"""The explanation of a reward as parts with titles: the same words on the page and in terminals."""

from __future__ import annotations

import re
from collections.abc import Mapping
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


def passed_tests(stored: Mapping[str, Any] | None) -> int:
    """Lines of the tests of a stored explanation that begin with `passed` or `ok`."""
    return len(_PASSED.findall((stored or {}).get("tests") or ""))


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
