"""Bounds of requests at once, shared by all who ask one server from one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from agentrl.served.waiting import in_line


class Gate:
    """Admits requests to one server, in the order in which they came.

    It counts all of them, so models with different bounds share one count: each waits until fewer
    are under way than its own bound.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        """Requests under way."""
        self.quiet_until = 0.0
        """Time of the event loop before which the server asked to be left alone."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def place(self, most: int) -> AsyncIterator[None]:
        """A place among the requests under way, for the time of the block.

        Args:
            most: bound of the one who asks.
        """
        await self._enter(most)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, most: int) -> None:
        if not self._waiting and self.in_flight < most:
            self.in_flight += 1
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (most, given)
        self._waiting.append(entry)
        try:
            with in_line():
                await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self._leave()  # the place came in the same moment
            else:
                with contextlib.suppress(ValueError):  # one who left has passed over it already
                    self._waiting.remove(entry)
                self._admit()
            raise

    def _leave(self) -> None:
        self.in_flight -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.in_flight < self._waiting[0][0]:
            given = self._waiting.popleft()[1]
            if not given.done():
                self.in_flight += 1
                given.set_result(None)


@dataclass(slots=True)
class LoopState:
    """State that the served models of one event loop share."""

    gates: dict[str, Gate] = field(default_factory=dict[str, Gate])
    """Address to gate."""
    flights: dict[str, asyncio.Future[str | Exception | None]] = field(
        default_factory=dict[str, "asyncio.Future[str | Exception | None]"]
    )
    """Digest of a request that is under way to its answer or failure; None if its asker left."""

    def gate(self, address: str) -> Gate:
        """The gate of a server."""
        return self.gates.setdefault(address, Gate())


_STATES: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopState] = WeakKeyDictionary()


def loop_state() -> LoopState:
    """The state of the running event loop."""
    return _STATES.setdefault(asyncio.get_running_loop(), LoopState())
