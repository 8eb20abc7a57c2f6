"""Work directories that were prepared once, for all who want one like it.

What is made runs in a task of its own: siblings ask at the same moment, and the one that happened
to ask first may be cancelled while the others still wait. A failure is raised in all that
wait and is not kept for later callers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentrl.errors import SandboxError
from agentrl.sandbox import Snapshot
from agentrl_sandboxes.pool.capacity import CLOSED

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    work: asyncio.Task[Snapshot]
    users: int = 0
    """Who waits for it, or fills a sandbox from it now: it must not be closed meanwhile."""

    @property
    def size_bytes(self) -> int:
        return self.work.result().size_bytes

    @property
    def failed(self) -> bool:
        work = self.work
        return work.done() and (work.cancelled() or work.exception() is not None)


class PreparedWork:
    """Snapshots by key; the one used longest ago goes first when they are too many."""

    def __init__(self, *, entries: int, size_bytes: int) -> None:
        """Keep at most so many, and so many bytes of them, beside those in use."""
        self._limit = entries
        self._limit_bytes = size_bytes
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    @asynccontextmanager
    async def use(
        self, key: Hashable, make: Callable[[], Awaitable[Snapshot]]
    ) -> AsyncIterator[Snapshot]:
        """The snapshot of `key`, made now if there is none; it stays open inside the block.

        Raises:
            SandboxError: the pool was closed meanwhile; also whatever `make` raises.
        """
        if self._closed:
            raise SandboxError(CLOSED)
        entry = self._entries.get(key)
        if entry is None or entry.failed:
            entry = self._entries[key] = _Entry(asyncio.ensure_future(_run(make)))
        self._entries.move_to_end(key)
        entry.users += 1
        try:
            yield await _result(entry.work)
        finally:
            entry.users -= 1
            if entry.users == 0 and not entry.work.done():
                # All callers that wanted it were cancelled.
                entry.work.cancel()
                self._drop(key, entry)
            elif entry.failed:
                self._drop(key, entry)
            self._shrink()

    async def close(self) -> None:
        """Stop what is being made and close what was made. Idempotent."""
        self._closed = True
        for key, entry in list(self._entries.items()):
            entry.work.cancel()
            self._drop(key, entry)
        while self._ending:
            await asyncio.wait(self._ending)

    def _shrink(self) -> None:
        kept = [(k, e) for k, e in self._entries.items() if e.work.done() and not e.failed]
        count, total = len(kept), sum(entry.size_bytes for _, entry in kept)
        for key, entry in kept:
            if count <= self._limit and total <= self._limit_bytes:
                return
            if entry.users == 0:
                count, total = count - 1, total - entry.size_bytes
                self._drop(key, entry)

    def _drop(self, key: Hashable, entry: _Entry) -> None:
        if self._entries.get(key) is entry:
            del self._entries[key]
        task = asyncio.ensure_future(_end(entry.work))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _run(make: Callable[[], Awaitable[Snapshot]]) -> Snapshot:
    return await make()


async def _result(work: asyncio.Task[Snapshot]) -> Snapshot:
    await asyncio.wait([work])
    if work.cancelled():
        raise SandboxError(CLOSED)
    return work.result()


async def _end(work: asyncio.Task[Snapshot]) -> None:
    await asyncio.wait([work])
    if not work.cancelled() and work.exception() is None:
        try:
            await work.result().close()
        except Exception:  # recording boundary: what is over is over
            logger.warning("a snapshot could not be closed", exc_info=True)
