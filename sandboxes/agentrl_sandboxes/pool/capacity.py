"""Capacity of the pool, first come, first served; a rollout that holds a sandbox never waits.

Two rollouts that each hold the last slot and wait for a second one, to grade in, would wait for
ever; so `more` goes past the line and the bound is exceeded by those who grade.
"""

from __future__ import annotations

import asyncio
from collections import deque

from agentrl.errors import SandboxError

CLOSED = "sandbox pool: closed"


class PoolCapacity:
    """A fixed number of slots, and the line of waits for one."""

    def __init__(self, limit: int) -> None:
        self.taken = 0
        """Slots in use; above the limit while a rollout holds `more`."""
        self._limit = limit
        self._line: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def waiting(self) -> int:
        """The length of the line."""
        return sum(not turn.done() for turn in self._line)

    async def take(self, *, more: bool = False) -> None:
        """Take a slot, or wait for one; `release` frees it.

        Raises:
            SandboxError: the pool was closed meanwhile.
        """
        if self._closed:
            raise SandboxError(CLOSED)
        if more or (self.taken < self._limit and not self.waiting):
            self.taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:
                # The slot came at the moment of the cancellation.
                self.release()
            raise

    def release(self) -> None:
        """Free a slot; the first in line has it at once."""
        self.taken -= 1
        while self._line and self.taken < self._limit:
            turn = self._line.popleft()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)

    def close(self) -> None:
        """Fail every wait in line."""
        self._closed = True
        for turn in self._line:
            if not turn.done():
                turn.set_exception(SandboxError(CLOSED))
        self._line.clear()
