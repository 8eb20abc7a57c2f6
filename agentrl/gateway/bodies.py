"""JSON bodies that repeat the ones before them: only what is new is parsed and hashed.

An agent sends its whole history with every request, so the text of a body is that of the one before
it up to the end of an item of the history:

    {"model": "policy", "messages": [ITEM, ITEM, ITEM, ITEM], "tools": [...]}
    ----------- head ----------------                     -- tail ----------

Items are parsed one by one, each where the one before it ends. Then the body is parsed with a mark
in place of them. If the mark comes back as the only item of the history, they stood where they were
looked for, and the whole is what parsing all of it would give. Everything else is parsed whole.

Bytes are cheap and values are not: 4 MiB of text are read in a few milliseconds, 4 MiB of `{},` in
seconds. So values and depth are counted in the bytes before anything is parsed, by numpy, which
lets the event loop go on meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from agentrl.gateway.records import RefusalReason, RequestRefused, check_number

MOST_VALUES = 2**16
"""Most values of a body: items of its lists and fields of its objects, at any depth."""
MOST_DEPTH = 64
"""Most lists and objects that stand in each other."""
_BLOCK = 2**18
"""Bytes that are looked at together."""
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPENS, _CLOSES = b"[{", b"]}"
_MOST_BODIES = 4
"""Bodies that are kept, for agents that hold several conversations in turn."""
_MOST_BYTES = 2 * 2**20
"""A longer body is not kept."""
_MARK = secrets.token_hex(16)
"""Stands for the items of a history; no client knows it."""
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODE = json.JSONDecoder().raw_decode


class Body(NamedTuple):
    """One body that was read."""

    value: Any
    """The parsed JSON. Values may be those of an earlier body, so nothing is changed in them."""
    digest: bytes
    """The same for the same bytes at the same path."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _KnownText:
    """A body that was read, in parts."""

    path: str
    """Of its request."""
    head: str
    """Text up to the first item."""
    text: str
    """Text up to the end of the last item."""
    tail: str
    """Text from the end of the list of items."""
    items: tuple[Any, ...]
    """The items, parsed."""
    ends: tuple[int, ...]
    """Position in `text` at which each ends."""
    hashes: tuple[Any, ...]
    """State of the hash before the first item, and at the end of each."""
    rest: dict[str, Any]
    """All of the body but the items."""

    def shared(self, text: str, path: str) -> int:
        """Items that another body begins with; -1 where path or head is another one."""
        if path != self.path or not text.startswith(self.head):
            return -1
        if text.startswith(self.text):
            return len(self.items)
        return bisect_left(self.ends, True, key=lambda end: text[:end] != self.text[:end])


class BodyReader:
    """Reads the bodies of one session."""

    def __init__(self) -> None:
        self._known: list[_KnownText] = []
        """The latest first."""

    def read(self, raw: bytes, *, path: str, field: str) -> Body:
        """Parse the body of a request.

        Args:
            raw: its bytes.
            path: of its request.
            field: the list in it that grows from request to request.

        Raises:
            ValueError: it is not JSON.
            RecursionError: it is nested too deep.
        """
        if len(raw) <= _MOST_BYTES:
            try:
                found = self._in_parts(raw.decode(), path, field)
            except (ValueError, RecursionError):
                found = None  # whatever is wrong is found, and named, in the whole
            if found is not None:
                self._known.insert(0, found)
                del self._known[_MOST_BODIES:]
                value = {**found.rest, field: [*found.items]}
                return Body(value, _hashed(found.hashes[-1], found.tail).digest())
        return Body(as_value(raw), hashlib.sha256(path.encode() + b"\0" + raw).digest())

    def _in_parts(self, text: str, path: str, field: str) -> _KnownText | None:
        """The parts of a body; None where its items are not found."""
        before, count = self._before(text, path)
        if before is None:
            found = _opening(field)(text)
            if found is None:
                return None
            head = text[: found.end()]
            items, ends, hashes = [], [], [_hashed(hashlib.sha256(path.encode() + b"\0"), head)]
        else:
            head = before.head
            items, ends = [*before.items[:count]], [*before.ends[:count]]
            hashes = [*before.hashes[: count + 1]]
        at = ends[-1] if ends else len(head)
        while True:
            close = _after_space(text, at)
            if text[close : close + 1] == "]":
                break
            if items:
                if text[close : close + 1] != ",":
                    return None
                close = _after_space(text, close + 1)
            item, end = _DECODE(text, close)
            items.append(item)
            ends.append(end)
            hashes.append(_hashed(hashes[-1], text[at:end]))
            at = end
        known = _KnownText(
            path=path,
            head=head,
            text=text[:at],
            tail=text[at:],
            items=tuple(items),
            ends=tuple(ends),
            hashes=tuple(hashes),
            rest={},
        )
        if before is not None:
            if count == len(before.items):
                self._known.remove(before)  # this one goes on where it ends
            if known.tail == before.tail:
                return replace(known, rest=before.rest)
        value = as_value(f'{head}"{_MARK}"{text[close:]}'.encode())
        if not isinstance(value, dict) or value.get(field) != [_MARK]:
            return None
        return replace(known, rest=value)

    def _before(self, text: str, path: str) -> tuple[_KnownText | None, int]:
        """The body that shares most items with a text, and their number."""
        best, most = None, -1
        for known in self._known:
            if (count := known.shared(text, path)) > most:
                best, most = known, count
        return best, most


def check_shape(raw: bytes, *, field: str = "the body", most: int = MOST_VALUES) -> None:
    """Refuse a JSON text with too many values, or with values that are nested too deep.

    Args:
        raw: the text. What is no JSON is for its parser to name.
        field: its name.
        most: values that it may have.

    Raises:
        RequestRefused: names the bound.
    """
    data = np.frombuffer(raw, np.uint8)
    inside = escaped = False
    values, depth = 1, 0
    for at in range(0, len(data), _BLOCK):
        block = data[at : at + _BLOCK]
        quotes, escaped = _quotes(block, escaped)
        in_text = np.bitwise_xor.accumulate(quotes.view(np.uint8)) ^ np.uint8(inside)
        inside = bool(in_text[-1])
        code = np.where(in_text, np.uint8(0), block)
        opens = (code == _OPENS[0]) | (code == _OPENS[1])
        closes = (code == _CLOSES[0]) | (code == _CLOSES[1])
        values += int(np.count_nonzero(opens) + np.count_nonzero(code == _COMMA))
        check_number(field, values, most, "values: items of lists and fields of objects")
        steps = opens.view(np.int8) - closes.view(np.int8)
        levels = np.cumsum(steps[steps != 0], dtype=np.int64) + depth
        if levels.size:
            if levels.max() > MOST_DEPTH:
                raise RequestRefused(
                    RefusalReason.BAD_REQUEST,
                    f"{field} cannot be read: its values are nested too deep, more than "
                    f"{MOST_DEPTH} lists and objects in each other; make them flatter",
                )
            depth = int(levels[-1])


def as_value(raw: bytes) -> Any:
    """The value of a JSON text, whole numbers of any length as they are.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deep.
    """
    try:
        return from_json(raw)
    except ValueError:
        # Takes half of a pair of surrogates and deep nesting, and says what is wrong.
        return json.loads(raw)


def _opening(field: str) -> Callable[[str], re.Match[str] | None]:
    """Finds the beginning of a list; the mark shows whether it is the right one."""
    return re.compile(rf'"{field}"[ \t\n\r]*:[ \t\n\r]*\[').search


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # it matches nothing, too
    return found.end()


def _quotes(block: NDArray[np.uint8], escaped: bool) -> tuple[NDArray[np.bool_], bool]:
    """The quotes that begin or end a text, and whether the block ends with an open escape.

    Args:
        block: bytes of a body.
        escaped: whether the byte before them escapes the first one.
    """
    quotes, slashes = block == _QUOTE, block == _BACKSLASH
    if escaped:
        quotes[0] = slashes[0] = False
    if not slashes.any():
        return quotes, False
    places = np.arange(len(block), dtype=np.int32)
    before = np.maximum.accumulate(np.where(slashes, np.int32(-1), places))
    # In a run of backslashes every second one is itself escaped.
    escapes = ((places - before) & 1).astype(np.bool_)
    quotes[1:] &= ~escapes[:-1]
    return quotes, bool(escapes[-1])


def _hashed(state: Any, text: str) -> Any:
    """The state of a hash after more text."""
    after = state.copy()
    after.update(text.encode())
    return after
