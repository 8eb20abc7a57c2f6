"""Idle sandboxes of the pool: started ahead of use, or wiped after it.

They are kept by kind, for the few kinds that were asked for last; with an image for every task
there would be no end of them otherwise. Old ones are not handed out: a sandbox ends itself
`lifetime_s` after its start or its last wipe, and who gets one must have at least half of that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable

from agentrl.errors import SandboxError
from agentrl_sandboxes.pool.lease import Held, SandboxKind
from agentrl_sandboxes.pool.starts import Starts, end_quietly

logger = logging.getLogger(__name__)

KINDS = 8
"""Kinds of which idle sandboxes are kept."""
WARM_START_S = 120.0
"""Bounds a start ahead of use."""


class IdleSandboxes:
    """Empty sandboxes by kind; the kind asked for longest ago is first."""

    def __init__(self, starts: Starts, *, warm: int, refill: Callable[[], None]) -> None:
        self._starts = starts
        self._warm = warm
        self._refill = refill
        self._idle: OrderedDict[SandboxKind, deque[Held]] = OrderedDict()
        self._warming: dict[asyncio.Task[bool], SandboxKind] = {}
        self._closed = False

    @property
    def count(self) -> int:
        """Idle ones, those being started included."""
        return sum(map(len, self._idle.values())) + len(self._warming)

    def pop(self, kind: SandboxKind) -> Held | None:
        """One that is young enough, the oldest first; this kind is in use from now on."""
        self._idle.setdefault(kind, deque())
        self._idle.move_to_end(kind)
        while len(self._idle) > KINDS:
            _, forgotten = self._idle.popitem(last=False)
            for held in forgotten:
                self._starts.end(held.sandbox)
        ready = self._idle[kind]
        while ready:
            held = ready.popleft()
            if young(held):
                return held
            self._starts.end(held.sandbox)
        return None

    def put(self, held: Held) -> None:
        """Keep one, or close it if its kind is not in use any more."""
        ready = self._idle.get(held.kind)
        if self._closed or ready is None:
            self._starts.end(held.sandbox)
        else:
            ready.append(held)

    def shrink(self, most: int, *, keep: SandboxKind) -> None:
        """Close idle ones of other kinds until there are at most so many in all."""
        for kind, ready in self._idle.items():
            while kind != keep and ready and self.count > most:
                self._starts.end(ready.popleft().sandbox)

    def refill(self, most: int) -> None:
        """Start what is missing, the kind asked for last first; at most so many idle in all."""
        for kind in reversed(self._idle):
            has = len(self._idle[kind]) + sum(other == kind for other in self._warming.values())
            for _ in range(min(self._warm - has, most - self.count)):
                task = asyncio.ensure_future(self._start(kind))
                self._warming[task] = kind
                task.add_done_callback(self._has_started)

    async def close(self) -> None:
        """Close all of them, and call off what is being started. Idempotent."""
        self._closed = True
        for task in self._warming:
            task.cancel()
        if self._warming:
            await asyncio.wait(list(self._warming))
        every = [held.sandbox for ready in self._idle.values() for held in ready]
        self._idle.clear()
        await asyncio.gather(*map(end_quietly, every))

    async def _start(self, kind: SandboxKind) -> bool:
        try:
            started = await self._starts.start(kind, None, limit_s=WARM_START_S)
        except SandboxError as error:
            logger.warning("no sandbox could be started ahead of use: %s", error)
            return False
        self.put(started.held)
        return True

    def _has_started(self, task: asyncio.Task[bool]) -> None:
        del self._warming[task]
        if not task.cancelled() and not task.exception() and task.result():
            self._refill()  # what was asked for while this one had the turn


def young(held: Held) -> bool:
    """True if it has at least half of its life before it."""
    age_s = asyncio.get_running_loop().time() - held.started_s
    return age_s < held.kind.limits.lifetime_s / 2
