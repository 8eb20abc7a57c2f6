"""Texts of a turn around what is shown apart: a call is read in its box, and a result is, too.

The stored text of a turn has the calls as they were written and the results as the model saw them.
A page that shows both would print each twice, and one that shows the boxes alone would lose what
stands between them: the thoughts of the model, and what the environment answered beside results.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_MARKS = re.compile(r"(?:</?[\w|:.-]++>(?:assistant|tool|user)?+|`++|\s++)*+")
"""Text that holds nothing to read: fences, and marks that a chat template puts around messages."""

_MOST_PREFIX_CHARS = 500
"""Of a call in the prompt."""


def texts_around(text: str, parts: Sequence[str]) -> list[str]:
    """Text before each part and after the last, so one more than parts; empty for mere marks.

    A part that does not stand in the text has nothing before it. One that began in the prompt, with
    the prefix of the config, ends where the text begins.

    Example:
        >>> texts_around("I look. <call/>\\nThen\\n<call/>", ["<call/>", "<call/>"])
        ['I look. ', 'Then', '']
        >>> texts_around("b\\n```\\nDone", ["```py\\na", "```py\\nb\\n```"])
        ['', '', 'Done']
    """
    found: list[str] = []
    at = 0
    for part in parts:
        start = text.find(part, at) if part else -1
        end = start + len(part)
        if start < 0:
            start, end = at, _prefixed(text, part) if at == 0 else at
        found.append(text[at:start])
        at = end
    found.append(text[at:])
    return ["" if _MARKS.fullmatch(piece) else piece.strip("\n") for piece in found]


def _prefixed(text: str, part: str) -> int:
    """Length of the start of the text with which a part ends that began in the prompt."""
    starts = range(min(len(part), _MOST_PREFIX_CHARS))
    found = (len(part) - at for at in starts if part[at] == text[:1] and text.startswith(part[at:]))
    return next(found, 0)


def turn_texts(turn: Mapping[str, Any]) -> list[str]:
    """The texts of a stored turn around its calls, or its results; empty where it has neither."""
    parts = [call["raw"] or "" for call in turn["tool_calls"]]
    parts = parts or [result["text"] or "" for result in turn["tool_results"]]
    return texts_around(turn["text"] or "", parts) if parts else []
