"""Time limits that stand still while a served model cannot be asked yet.

A reward function has `rollout.env_timeout_s`. When the rollouts of a step end together, most of
their judges wait for a place among `max_in_flight`: a wait in line is no sign of a judge that
hangs, so it does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar


class HeldLimit:
    """A time limit that can be held; holds may overlap."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        """Control a limit that has been entered."""
        self._limit = limit
        self._holds = 0
        self._left_s = 0.0

    def hold(self) -> None:
        """Stop the clock until `release`."""
        self._holds += 1
        when = self._limit.when()
        if self._holds == 1 and when is not None and not self._limit.expired():
            self._left_s = when - asyncio.get_running_loop().time()
            self._limit.reschedule(None)

    def release(self) -> None:
        """Start the clock again, once every `hold` has been released."""
        self._holds -= 1
        if not self._holds and self._limit.when() is None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + self._left_s)


_LIMIT: ContextVar[HeldLimit | None] = ContextVar("_LIMIT", default=None)


@asynccontextmanager
async def limited(seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, but waits in line for served models do not count.

    Raises:
        TimeoutError: the block took longer than `seconds`.
    """
    async with asyncio.timeout(seconds) as limit:
        token = _LIMIT.set(HeldLimit(limit))
        try:
            yield
        finally:
            _LIMIT.reset(token)


@contextmanager
def in_line() -> Iterator[None]:
    """Hold the limit of the present call while the block waits for its turn."""
    limit = _LIMIT.get()
    if limit is None:
        yield
        return
    limit.hold()
    try:
        yield
    finally:
        limit.release()
