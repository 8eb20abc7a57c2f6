"""The thought with which a turn begins, apart from the words behind it.

A thought opens with `<think>`, in the turn or at the end of the prompt before it, and ends at the
first `</think>` that no call in it quotes. A turn that opens none has none, whatever it quotes.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable

OPEN, CLOSE = "<think>", "</think>"
_HALF = re.compile(rf"^{CLOSE}|{CLOSE}[ \t\r]*+\n|(?<![^.!?\s][ \t]){CLOSE}\s*+\Z", re.MULTILINE)
"""The end of a thought that text does not open. Sentences and JSON that quote the mark neither
begin nor end a line with it; one that ends the text with it has a space before."""
_OPENED = re.compile(rf"{OPEN}|<tool_call>")
_FENCE = re.compile(r"^[ \t]*+(?:`{3}|~{3})", re.MULTILINE)


def end_of_thought(
    text: str, *, begun: bool = False, quotes: Iterable[tuple[int, int]] = ()
) -> int:
    """The position behind the thought: 0 without one, the whole length if it is not closed.

    Args:
        text: of one turn.
        begun: whether the prompt has opened the thought.
        quotes: spans of whole calls in order, in which `</think>` is text of an argument.
    """
    if not begun and not text.startswith(OPEN, len(text) - len(text.lstrip())):
        return 0
    at, spans = text.find(CLOSE), iter(quotes)
    start, end = 0, 0
    while at >= 0:
        while end <= at:
            start, end = next(spans, (len(text), len(text) + 1))
        if at < start:
            return at + len(CLOSE)
        at = text.find(CLOSE, end)
    return len(text)


def split_thought(
    text: str, *, begun: bool = False, quotes: Iterable[tuple[int, int]] = ()
) -> tuple[str, str]:
    """The thought without its marks, and the words behind it; arguments as `end_of_thought`.

    Example:
        >>> split_thought("<think>hm</think> Yes.")
        ('hm', 'Yes.')
    """
    return split_behind(text, end_of_thought(text, begun=begun, quotes=quotes))


def split_behind(text: str, end: int) -> tuple[str, str]:
    """As `split_thought`, where the end of the thought is known."""
    if not end:
        return "", text
    thought = text[:end].lstrip().removeprefix(OPEN).removesuffix(CLOSE)
    return thought.strip(), text[end:].lstrip()


def split_served(text: str) -> tuple[str, str]:
    """As `split_thought`, of a server that leaves thoughts in its text.

    Its template may have opened the thought.
    """
    end = _half_thought(text)
    return split_behind(text, end) if end else split_thought(text)


def has_thought(text: str) -> bool:
    """True for text that begins with a thought, also where only its end stands in it."""
    opened = text.lstrip().startswith(OPEN) and CLOSE in text
    return opened or bool(_half_thought(text))


def _half_thought(text: str) -> int:
    """The position behind a thought that the text ends and does not open; 0 without one."""
    opened = _OPENED.search(text)
    fences = [fence.start() for fence in _FENCE.finditer(text)]
    for found in _HALF.finditer(text):
        if opened and opened.start() < found.start():
            return 0
        # Between two fences it is quoted; behind one that nothing closes it is not.
        if bisect(fences, found.start()) % 2 == 0 or len(fences) % 2:
            return found.start() + len(CLOSE)
    return 0


def written_thought(thought: str) -> str:
    """A thought that is known apart, as the beginning of a turn; empty for none.

    A `</think>` that the thought quotes is split, since it would end the thought.
    """
    text = thought.strip("\n").replace(CLOSE, f"{CLOSE[0]} {CLOSE[1:]}")
    return f"{OPEN}\n{text}\n{CLOSE}\n\n" if text.strip() else ""
