"""Starts of sandboxes: a few at a time, with retries, and none for a while when all starts fail.

A start runs in a task of the pool's. Who asked for it may be cancelled at any moment; what was
being made then is waited for and closed, so no backend has to survive a cancellation.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

from agentrl.errors import SandboxError, SandboxUnavailable
from agentrl.sandbox import Sandbox, SandboxBackend, Snapshot
from agentrl_sandboxes.pool.breaker import Breaker
from agentrl_sandboxes.pool.capacity import CLOSED
from agentrl_sandboxes.pool.lease import Held, SandboxKind

logger = logging.getLogger(__name__)

TRIES = 3
"""How often one request is tried before its caller gets the error."""
PAUSE_S = 0.2
"""Before the second try, roughly; twice as long before the third."""
LOOK_S = 0.4
"""How often, at most, those who wait for a daemon to come back look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshSandbox:
    """A sandbox that has just been made."""

    held: Held
    """The sandbox, not lent yet."""
    waited_s: float
    """Seconds in line for a turn."""


class Starts:
    """Makes sandboxes of a backend, so many at a time."""

    def __init__(self, inner: SandboxBackend, *, at_once: int, breaker: Breaker) -> None:
        self._inner = inner
        self._breaker = breaker
        # Not seeded: see `Breaker`.
        self._draw = random.Random()
        # Bounds the starts under way: a daemon that is asked for more at once gets slower.
        self._turns = asyncio.Semaphore(at_once)
        self._running: set[asyncio.Task[Sandbox]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False
        self.waiting = 0
        """Starts that wait for a turn."""

    @property
    def running(self) -> int:
        """The number of starts under way."""
        return len(self._running)

    @property
    def calm(self) -> bool:
        """True if a start ahead of use would delay no other."""
        return not (self.waiting or self._breaker.open or self._turns.locked() or self._closed)

    async def start(
        self, kind: SandboxKind, snapshot: Snapshot | None, *, limit_s: float
    ) -> FreshSandbox:
        """Start a sandbox, with retries.

        Args:
            kind: image and limits.
            snapshot: what its work directory holds; None for nothing.
            limit_s: bounds starts and the pauses between them, not the wait for a turn.

        Raises:
            SandboxUnavailable: there is no such image.
            SandboxError: it could not be made, or the pool was closed.
        """
        now = asyncio.get_running_loop().time
        left_s, waited_s, tries = limit_s, 0.0, 0
        while True:
            began = now()
            lost_s = await self._turn(left_s)
            waited_s += now() - began - lost_s
            left_s -= lost_s
            began = now()
            try:
                sandbox = await self._in_own_task(kind, snapshot, left_s)
            except SandboxUnavailable:
                raise
            except SandboxError as error:
                tries += 1
                pause_s = PAUSE_S * 2**tries * self._draw.uniform(0.25, 0.75)
                left_s -= now() - began + pause_s
                if tries >= TRIES or left_s <= 0 or self._closed:
                    raise
                logger.warning("a sandbox did not start, trying again: %s", error)
                await asyncio.sleep(pause_s)
            else:
                held = Held(sandbox=sandbox, kind=kind, started_s=now())
                return FreshSandbox(held=held, waited_s=waited_s)

    def end(self, sandbox: Sandbox) -> None:
        """Close an unwanted sandbox in the background; `close` waits for it."""
        task = asyncio.ensure_future(end_quietly(sandbox))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Call off the starts under way and wait for what is being closed. Idempotent."""
        self._closed = True
        for task in self._running:
            task.cancel()
        while waiting := self._running | self._ending:
            await asyncio.wait(waiting)
            # What was made at the last moment is closed by a callback that has yet to run.
            await asyncio.sleep(0)

    async def _turn(self, left_s: float) -> float:
        """Wait for a turn, and while nothing starts for somebody else to find out that it does.

        Returns:
            The seconds of the second kind.
        """
        now = asyncio.get_running_loop().time
        lost_s = 0.0
        while True:
            self.waiting += 1
            try:
                await self._turns.acquire()
            finally:
                self.waiting -= 1
            if self._closed:
                self._turns.release()
                raise SandboxError(CLOSED)
            if self._breaker.enter(now()):
                return lost_s
            self._turns.release()
            if lost_s >= left_s:
                raise SandboxError(
                    f"sandbox backend {self._inner.name!r} is being left alone after failures: "
                    f"{self._breaker.reason}; waited {lost_s:.1f} s for it to come back"
                )
            began = now()
            await asyncio.sleep(LOOK_S * self._draw.uniform(0.5, 1.0))
            lost_s += now() - began

    async def _in_own_task(
        self, kind: SandboxKind, snapshot: Snapshot | None, limit_s: float
    ) -> Sandbox:
        """Create with the turn that is held, which is released when it is really over."""
        task = asyncio.ensure_future(self._create(kind, snapshot, limit_s))
        self._running.add(task)
        task.add_done_callback(self._over)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.add_done_callback(self._unwanted)
            raise
        if task.cancelled():
            raise SandboxError(CLOSED)
        return task.result()

    def _over(self, task: asyncio.Task[Sandbox]) -> None:
        self._running.discard(task)
        self._turns.release()

    def _unwanted(self, task: asyncio.Task[Sandbox]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.end(task.result())

    async def _create(
        self, kind: SandboxKind, snapshot: Snapshot | None, limit_s: float
    ) -> Sandbox:
        now = asyncio.get_running_loop().time
        make = self._inner.create
        scope = asyncio.timeout(limit_s)
        try:
            async with scope:
                # Backends without images need not know the word.
                image = {"image": kind.image} if kind.image else {}
                sandbox = await make(kind.limits, snapshot, **image)
        except SandboxUnavailable:
            self._breaker.learned_nothing()
            raise
        except SandboxError as error:
            self._breaker.failed(now(), error)
            raise
        except TimeoutError:
            if not scope.expired():
                self._breaker.learned_nothing()
                raise
            error = SandboxError(
                f"sandbox backend {self._inner.name!r} did not open a sandbox in {limit_s:g} s"
            )
            self._breaker.failed(now(), error)
            raise error from None
        except BaseException:
            self._breaker.learned_nothing()
            raise
        self._breaker.succeeded()
        return sandbox


async def end_quietly(sandbox: Sandbox) -> None:
    """Close it; a backend that breaks its promise never to raise here costs a warning."""
    try:
        await sandbox.close()
    except Exception:  # recording boundary: somebody else's backend may raise anything
        logger.warning("a sandbox could not be closed", exc_info=True)
