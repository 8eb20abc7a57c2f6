"""The thought with which a turn begins, apart from the words behind it.

A thought opens with a mark, in the turn or at the end of the prompt before it, and ends at the
first closing mark of the same kind that no call in it quotes. A turn that opens none has none,
whatever it quotes. The marks are those that families of models are trained on, and those that
prompts ask for.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Mapping
from typing import Any

OPEN, CLOSE = "<think>", "</think>"
_CLOSINGS = {
    "[THINK]": "[/THINK]",  # Magistral
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command A
    "\u25c1think\u25b7": "\u25c1/think\u25b7",  # Kimi-VL
    "<|channel>thought": "<channel|>",  # Gemma 4
    "<|channel|>analysis<|message|>": "<|end|>",  # gpt-oss
}
"""The mark that closes a thought by the one that opens it, but for those that look like XML."""
FAMILY_MARKS = (OPEN, "<seed:think>", "<thought>", *_CLOSINGS)
"""Marks that open a thought, of which a tokenizer or a template holds those of its own family."""
_TAG = r"(?:[a-zA-Z]\w{0,30}[:_])?(?i:think|thinking|thoughts?|reasoning)>"
_OPENING = re.compile("|".join([f"<{_TAG}", *map(re.escape, _CLOSINGS)]))
_OPENING_LAST = re.compile(rf"(?:{_OPENING.pattern})\s*\Z")
_SAID = re.compile(r"<\|channel\|>final[^<]{0,40}+<\|message\|>")
"""What gpt-oss puts before words, also where it thought nothing."""
_HEADER = re.compile(rf"(?:<\|start\|>assistant(?:{_SAID.pattern})?)?")
"""What stands between the end of a thought and the words."""
_AGAIN = "<|start|>assistant<|channel|>analysis<|message|>"
"""A thought of gpt-oss goes on."""
CLOSING = "|".join([f"</{_TAG}", *map(re.escape, _CLOSINGS.values())])
"""Pattern of the marks that close a thought."""
_CLOSED = re.compile(rf"(?:{CLOSING})(?:{_HEADER.pattern})\Z")
_FAMILY_CLOSING = "|".join(
    [r"</(?:[a-zA-Z]\w{0,30}[:_])?think>", *map(re.escape, _CLOSINGS.values())]
)
_HALF = re.compile(
    rf"^(?:{_FAMILY_CLOSING})|(?:{_FAMILY_CLOSING})[ \t\r]*+\n"
    rf"|(?<![^.!?\s][ \t])(?:{_FAMILY_CLOSING})\s*+\Z",
    re.MULTILINE,
)
"""The end of a thought that text does not open. Sentences and JSON that quote the mark neither
begin nor end a line with it; one that ends the text with it has a space before."""
_END = re.compile(_FAMILY_CLOSING)
_OPENED = re.compile(rf"{_OPENING.pattern}|<tool_call>")
_FENCE = re.compile(r"^[ \t]*+(?:`{3}|~{3})", re.MULTILINE)


def closing_of(opening: str) -> str:
    """The mark that closes a thought which this one opens."""
    return _CLOSINGS.get(opening, f"</{opening[1:]}")


def opening_before(text: str) -> str:
    """The mark with which a prompt ends that has opened a thought; empty without one."""
    found = _OPENING_LAST.search(text[-200:])
    return found[0].rstrip() if found else ""


def _opening_of(text: str) -> str:
    found = _OPENING.match(text, len(text) - len(text.lstrip()))
    return found[0] if found else ""


def end_of_thought(
    text: str, *, begun: bool | str = False, quotes: Iterable[tuple[int, int]] = ()
) -> int:
    """The position behind the thought: 0 without one, the whole length if it is not closed.

    Args:
        text: of one turn.
        begun: the mark with which the prompt has opened the thought, true for `<think>`; empty or
            false where it has not.
        quotes: spans of whole calls in order, in which a closing mark is text of an argument.
    """
    opening = (OPEN if begun is True else begun) or _opening_of(text)
    if not opening:
        said = _SAID.match(text)
        return said.end() if said else 0
    close = closing_of(opening)
    at, spans = text.find(close), iter(quotes)
    start, end = 0, 0
    while at >= 0:
        while end <= at:
            start, end = next(spans, (len(text), len(text) + 1))
        behind = at + len(close)
        if at >= start:
            behind = end
        elif not text.startswith(_AGAIN, behind):
            header = _HEADER.match(text, behind)
            return header.end() if header else behind
        at = text.find(close, behind)
    return len(text)


def split_thought(
    text: str, *, begun: bool | str = False, quotes: Iterable[tuple[int, int]] = ()
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
    _, thought, _ = parts_of_thought(text[:end])
    return thought.strip(), text[end:].lstrip()


def parts_of_thought(text: str) -> tuple[str, str, str]:
    """The opening mark, the thought and the closing mark of a text that ends where it ends."""
    opening = _opening_of(text)
    begin = text.index(opening) + len(opening)
    said = None if opening else _SAID.match(text)
    close = said or _CLOSED.search(text, max(begin, len(text) - 200))
    end = close.start() if close else len(text)
    return text[:begin], text[begin:end].replace(f"<|end|>{_AGAIN}", "\n"), text[end:]


def split_parts(content: Any) -> tuple[str, Any]:
    """The thought that stands in content parts of its own, and the other parts.

    Example:
        >>> split_parts([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yes."}])
        ('hm', [{'type': 'text', 'text': 'Yes.'}])
    """
    if not isinstance(content, list | tuple):
        return "", content
    thoughts: list[str] = []
    others: list[Any] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("thinking", "reasoning"):
            others.append(part)
            continue
        inner = part.get("thinking") or part.get("text") or ""
        for piece in inner if isinstance(inner, list | tuple) else [inner]:
            thoughts.append(str(piece.get("text", "") if isinstance(piece, Mapping) else piece))
    return "".join(thoughts), others


def split_served(text: str) -> tuple[str, str]:
    """As `split_thought`, of a server that leaves thoughts in its text.

    Its template may have opened the thought.
    """
    end = _half_thought(text)
    return split_behind(text, end) if end else split_thought(text)


def has_thought(text: str) -> bool:
    """True for text that begins with a thought, also where only its end stands in it."""
    opening = _opening_of(text)
    return bool(opening and closing_of(opening) in text) or bool(_half_thought(text))


def _half_thought(text: str) -> int:
    """The position behind a thought that the text ends and does not open; 0 without one."""
    opened = _OPENED.search(text)
    fences = [fence.start() for fence in _FENCE.finditer(text)]
    for found in _HALF.finditer(text):
        if opened and opened.start() < found.start():
            return 0
        # Between two fences it is quoted; behind one that nothing closes it is not.
        if bisect(fences, found.start()) % 2 == 0 or len(fences) % 2:
            mark = _END.match(text, found.start())
            return mark.end() if mark else 0
    return 0


def written_thought(thought: str) -> str:
    """A thought that is known apart, as the beginning of a turn; empty for none.

    A `</think>` that the thought quotes is split, since it would end the thought.
    """
    text = thought.strip("\n").replace(CLOSE, f"{CLOSE[0]} {CLOSE[1:]}")
    return f"{OPEN}\n{text}\n{CLOSE}\n\n" if text.strip() else ""
