"""Finds the code in what a model wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentrl.types import ToolCall
from agentrl_envs.code.parse import parsed

MAX_CODE_CHARS = 50_000
"""Longer code is no answer to a small task; it is treated as no code at all."""

_FENCE = re.compile(
    r"```[ \t]*+(?:python3?|py)?+[ \t]*+\r?\n(?P<code>.*?)(?P<end>```|\Z)",
    re.DOTALL | re.IGNORECASE,
)


def extract_code(text: str, calls: Sequence[ToolCall], entry_point: str) -> str | None:
    """The solution in one model turn, or None.

    The last fenced block that defines `entry_point` wins (a later block is often only a usage
    example), then the last fenced block, then the `code` argument of a tool call, then the whole
    text if it is Python that defines the function. A block without its closing fence was
    truncated; it counts only if no closed block defines the function.
    """
    if len(text) > MAX_CODE_CHARS:
        return None
    found = [match for match in _FENCE.finditer(text) if match["code"].strip()]
    blocks = [match["code"] for match in found]
    blocks += [
        call.arguments["code"] for call in calls if isinstance(call.arguments.get("code"), str)
    ]
    closed = [match["code"] for match in found if match["end"]]
    for candidates in (closed, blocks):
        if defining := [block for block in candidates if defines(block, entry_point)]:
            return defining[-1]
    if blocks:
        return blocks[-1]
    return text if defines(text, entry_point) and parses(text) else None


def defines(code: str, name: str) -> bool:
    """True if the text seems to define a function of that name; it need not parse."""
    # Spaces of one line and possessive: from each of many empty lines, `\s*` would try them all.
    pattern = rf"^[^\S\n]*+(?:async\s++)?+def\s++{re.escape(name)}\b"
    return re.search(pattern, code, re.MULTILINE) is not None


def parses(code: str) -> bool:
    """True if the text is valid Python."""
    return parsed(code) is not None
