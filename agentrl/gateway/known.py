"""Parts of earlier requests of a session, so that each is read once.

An agent sends its whole history with every request. Reading it anew would make a turn cost what all
turns before it did; an item that is spelled as before, byte for byte, is what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from agentrl.rollout.history.meaning import HeardMessage, tools_key
from agentrl.tool import Tool
from agentrl.types import Message

_MOST_BYTES = 16 * 2**20
"""Most bytes of items that are kept; beyond it everything is read anew once."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownItem:
    """One item of a history, read."""

    item: Any
    messages: tuple[Message, ...]
    exact: bool
    """Whether only an item of the same spelling is equal to it: `1 == True == 1.0`."""


class KnownParts:
    """Items, tools and messages that a session has read before."""

    def __init__(self) -> None:
        self.heard: dict[int, HeardMessage] = {}
        """Messages with their meaning, by the identity of the message; see `hear`."""
        self._items: dict[bytes, _KnownItem] = {}
        self._last: list[_KnownItem] = []
        self._tools: dict[bytes, tuple[Tool, ...]] = {}
        self._tool_keys: dict[int, tuple[tuple[Tool, ...], str]] = {}
        self._bytes = 0

    def messages(
        self, items: Sequence[Any], read: Callable[[Any, str], Iterable[Message]], where: str
    ) -> list[Message]:
        """The messages of all items.

        Args:
            items: of a request.
            read: gives the messages of one item, and takes its name for errors.
            where: name of an item, with `{}` for its position.
        """
        found: list[Message] = []
        last, self._last = self._last, []
        for at, item in enumerate(items):
            if at < len(last) and last[at].exact and last[at].item == item:
                one = last[at]
            else:
                one = self._item(item, read, where.format(at))
            self._last.append(one)
            found += one.messages
        return found

    def _item(
        self, item: Any, read: Callable[[Any, str], Iterable[Message]], where: str
    ) -> _KnownItem:
        spelled = _spelled(item)
        known = self._items.get(spelled) if spelled else None
        if known is None:
            known = _KnownItem(
                item=item, messages=tuple(read(item, where)), exact=_has_no_numbers(item)
            )
            self._keep(self._items, spelled, known)
        return known

    def tools(self, items: Sequence[Any], read: Callable[[], Iterable[Tool]]) -> tuple[Tool, ...]:
        """The tools that a request offers.

        Args:
            items: all that say what the tools are.
            read: gives the tools.
        """
        spelled = _spelled(items)
        known = self._tools.get(spelled) if spelled else None
        if known is None:
            known = tuple(read())
            self._keep(self._tools, spelled, known)
        return known

    def tools_key(self, tools: tuple[Tool, ...]) -> str:
        """The meaning of an offer of tools; see `agentrl.rollout.history.meaning.tools_key`."""
        if id(tools) not in self._tool_keys:
            self._tool_keys[id(tools)] = tools, tools_key(tools)
        return self._tool_keys[id(tools)][1]

    def _keep(self, known: dict[bytes, T], spelled: bytes, value: T) -> None:
        self._bytes += len(spelled)
        if self._bytes > _MOST_BYTES:
            self._bytes = len(spelled)
            for each in (self.heard, self._items, self._tools, self._tool_keys):
                each.clear()
        if spelled:
            known[spelled] = value


def _has_no_numbers(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_has_no_numbers, value.values()))
    if isinstance(value, list):
        return all(map(_has_no_numbers, value))
    return value is None or isinstance(value, str)


def _spelled(item: Any) -> bytes:
    """JSON of an item; empty where it holds what only few writers take."""
    try:
        return orjson.dumps(item)
    except TypeError:
        return b""
