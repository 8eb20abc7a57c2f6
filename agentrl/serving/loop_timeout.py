"""`LoopTimeout`: a time limit for the answers of others that this process cannot use up itself.

A driver of thousands of conversations may need many seconds for one pass of its event loop. The
answer of an engine then lies in a socket that nobody reads, and a plain time limit, which looks at
the clock, calls the engine silent: all of them at once, although all are well.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

PARTS = 40
"""Parts of a limit; each needs a pass of the loop, in which sockets are read as well. A question
over a new connection takes about ten passes."""


class LoopTimeout:
    """As `asyncio.timeout`, but a pass of the event loop counts as a small part of the limit.

    While the loop is prompt the limit is `limit_s`; while it is late it is longer, and never less
    than `PARTS` passes.

    Example:
        >>> async with LoopTimeout(0.01):
        ...     await asyncio.sleep(1)
        Traceback (most recent call last):
        TimeoutError
    """

    def __init__(self, limit_s: float) -> None:
        """Take the limit in seconds."""
        self._part_s = limit_s / PARTS
        self._left = PARTS
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expired(self) -> bool:
        """True if the limit ran out."""
        return self._scope.expired()

    async def __aenter__(self) -> LoopTimeout:
        await self._scope.__aenter__()
        self._timer = asyncio.get_running_loop().call_later(self._part_s, self._count)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._timer is not None:
            self._timer.cancel()
        return await self._scope.__aexit__(kind, error, trace)

    def _count(self) -> None:
        loop = asyncio.get_running_loop()
        self._left -= 1
        if self._left:
            self._timer = loop.call_later(self._part_s, self._count)
        else:
            self._timer = None
            self._scope.reschedule(loop.time())
