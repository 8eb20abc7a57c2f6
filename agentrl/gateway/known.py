"""Parts of earlier requests of a session, so that each is read once.

An agent sends its whole history with every request. Reading it anew would make a turn cost what all
turns before it did; an item that is spelled as before, byte for byte, is what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import is_
from typing import Any, TypeVar

import orjson

from agentrl.gateway.bodies import BodyReader
from agentrl.gateway.records import (
    MOST_MESSAGES,
    MOST_TOOLS,
    RefusalReason,
    RequestRefused,
    check_number,
)
from agentrl.rollout.history.meaning import HeardMessage, hear, tools_key
from agentrl.tool import Tool
from agentrl.types import Image, Message

_MOST_BYTES = 16 * 2**20
"""Most bytes of items that are kept; beyond it everything is read anew once."""
MOST_IMAGE_BYTES = 512 * 2**20
"""Most bytes of the images of a session. Their files stay in the folder of the run, whatever comes
of the request, and an agent may run what the policy wrote."""
K = TypeVar("K", str, bytes)
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class _KnownItem:
    """One item of a history, read."""

    item: Any
    """As it came the latest time."""
    messages: tuple[Message, ...]
    """Messages that it stands for."""


class KnownParts:
    """Bodies, items, tools and messages that a session has read before."""

    def __init__(self, *, sees: bool = False) -> None:
        self.sees = sees
        """Whether the model of the session reads images."""
        self._shown: set[str] = set()
        """Digests of all images that it was ever shown."""
        self._image_bytes = 0
        self.bodies = BodyReader()
        """Reads the bodies of its requests."""
        self._heard: dict[int, HeardMessage] = {}
        """Messages with their meaning, by the identity of the message; see `hear`."""
        self._said: tuple[tuple[Message, ...], tuple[HeardMessage, ...]] = (), ()
        """The latest conversation, and what was heard of it."""
        self._read: tuple[Sequence[Any], Sequence[Message]] = (), ()
        """The latest items, and the messages of all."""
        self._items: dict[bytes, _KnownItem] = {}
        self._same: dict[int, _KnownItem] = {}
        """The same by the identity of the item."""
        self._systems: dict[str, Message] = {}
        self._tools: dict[bytes, tuple[Tool, ...]] = {}
        self._offered: tuple[Sequence[Any], tuple[Tool, ...]] | None = None
        """The latest offer of tools, as it came and read."""
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
        check_number(where.partition("{")[0].rstrip("[."), len(items), MOST_MESSAGES, "items")
        before, known = self._read
        goes_on = len(before) <= len(items) and all(map(is_, before, items))
        found = [*known] if goes_on else []
        for at in range(len(before) if goes_on else 0, len(items)):
            one = self._same.get(id(items[at]))
            if one is None:
                one = self._item(items[at], read, where.format(at))
            found += one.messages
            check_number(where.format(at), len(found), MOST_MESSAGES, "messages up to it")
        self._read = items, (*found,)
        return found

    def _item(
        self, item: Any, read: Callable[[Any, str], Iterable[Message]], where: str
    ) -> _KnownItem:
        spelled = _spelled(item)
        known = self._items.get(spelled) if spelled else None
        if known is None:
            known = _KnownItem(item=item, messages=tuple(read(item, where)))
            for image in (image for message in known.messages for image in message.images):
                self._show(image, where)
            self._keep(self._items, spelled, known, size=len(spelled))
        if spelled:
            # The one that is kept holds the item, so no other one has that identity.
            self._same.pop(id(known.item), None)
            known.item = item
            self._same[id(item)] = known
        return known

    def _show(self, image: Image, where: str) -> None:
        if image.digest in self._shown:
            return
        if self._image_bytes + len(image.data) > MOST_IMAGE_BYTES:
            raise RequestRefused(
                RefusalReason.TOO_LARGE,
                f"{where} holds an image of {len(image.data)} bytes, and this session has shown "
                f"{self._image_bytes} of at most {MOST_IMAGE_BYTES} bytes of images; send smaller "
                "pictures",
            )
        self._shown.add(image.digest)
        self._image_bytes += len(image.data)

    def system(self, text: str) -> Message:
        """The message of a system prompt that stands beside the history."""
        if text not in self._systems:
            message = Message(role="system", content=text)
            self._keep(self._systems, text, message, size=len(text))
            return message
        return self._systems[text]

    def hear(self, messages: tuple[Message, ...]) -> tuple[HeardMessage, ...]:
        """The messages with content; see `agentrl.rollout.history.meaning.hear`.

        Where they go on behind those of the latest time, only the rest is looked at: neither joined
        messages nor the order of results reaches over a message of the assistant that says
        something.
        """
        before, known = self._said
        if messages is before:
            return known
        rest = messages[len(before) :]
        if (
            known
            and rest
            and rest[0].role == "assistant"
            and (rest[0].tool_calls or rest[0].content.strip())
            and not known[-1].spoken
            and all(map(is_, before, messages))  # `1 == True` makes other calls equal
        ):
            heard = known + hear(rest, self._heard)
        else:
            heard = hear(messages, self._heard)
        self._said = messages, heard
        return heard

    def tools(self, items: Sequence[Any], read: Callable[[], Iterable[Tool]]) -> tuple[Tool, ...]:
        """The tools that a request offers.

        Args:
            items: all that say what the tools are.
            read: gives the tools.
        """
        if self._offered is not None and self._offered[0] is items:
            return self._offered[1]
        spelled = _spelled(items)
        known = self._tools.get(spelled) if spelled else None
        if known is None:
            known = tuple(islice(read(), MOST_TOOLS + 1))
            check_number("tools", len(known), MOST_TOOLS, "tools")
            self._keep(self._tools, spelled, known, size=len(spelled))
        self._offered = items, known
        return known

    def tools_key(self, tools: tuple[Tool, ...]) -> str:
        """The meaning of an offer of tools; see `agentrl.rollout.history.meaning.tools_key`."""
        if id(tools) not in self._tool_keys:
            self._tool_keys[id(tools)] = tools, tools_key(tools)
        return self._tool_keys[id(tools)][1]

    def _keep(self, known: dict[K, T], spelled: K, value: T, *, size: int) -> None:
        self._bytes += size
        if self._bytes > _MOST_BYTES:
            self._bytes = size
            self._heard.clear()
            self._items.clear()
            self._same.clear()
            self._systems.clear()
            self._tools.clear()
            self._tool_keys.clear()
        if spelled:
            known[spelled] = value


def _spelled(item: Any) -> bytes:
    """JSON of an item; empty where it holds what only few writers take."""
    try:
        return orjson.dumps(item)
    except TypeError:
        return b""
