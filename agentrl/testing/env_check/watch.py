"""Catches environments that block the event loop, and counts what they leave behind."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from agentrl.machine.processes.tree import children_of
from agentrl.plugins.loop_watch import Stretches
from agentrl.plugins.user_code import call_limit, user_code
from agentrl.testing.env_check.findings import broken
from agentrl.types.finding import Finding

_TICK_S = 0.1
_OWN_THREADS = ("asyncio_", "waitpid-", "user-code")
"""Beginnings of the names of threads that run calls, ours and the user's."""


class Blocked(BaseException):
    """Raised inside code that held the event loop too long; no `except Exception` hides it."""


class NoCoroutine(Exception):
    """A method that a rollout awaits is none that can be awaited."""


class BlockingWatch:
    """Interrupts a guarded coroutine that runs without awaiting for more than `block_s` seconds.

    Time in which it could run but other processes had the processor does not count. It needs the
    alarm signal of the main thread; elsewhere it only watches and never interrupts.
    """

    def __init__(self, block_s: float) -> None:
        self.block_s = block_s
        self._since: float | None = None
        self._waited_s = 0.0

    def enter(self) -> None:
        """A stretch between two awaits begins."""
        self._waited_s, self._since = _waited_s(), time.monotonic()

    def leave(self) -> None:
        """The stretch between two awaits ends."""
        self._since = None

    async def guard(self, start: Callable[[], Any], *, limit_s: float) -> Any:
        """Call `start` and await what it returns, under the watch.

        Args:
            start: calls user code.
            limit_s: within which the caller cancels it, for the threads that it may leave behind.

        Raises:
            Blocked: it held the event loop.
            NoCoroutine: what it returned cannot be awaited.
        """

        async def run() -> Any:
            with user_code(Blocked):
                value = start()
                if not isinstance(value, Awaitable):
                    raise NoCoroutine(f"returned {type(value).__name__} and is no coroutine")
                return await value

        with call_limit(limit_s):
            return await _Guarded(self, run())

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Interrupt while the block lasts; the alarm of others goes on afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        started = time.monotonic()
        handler = signal.signal(signal.SIGALRM, self._on_alarm)
        left, interval = signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if left:
                remaining = max(0.001, left - (time.monotonic() - started))
                signal.setitimer(signal.ITIMER_REAL, remaining, interval)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        since = self._since
        if since is None:
            return
        waited_s = _waited_s() - self._waited_s
        if time.monotonic() - since - waited_s > self.block_s:
            self._since = None
            raise Blocked


def _waited_s() -> float:
    """Seconds that this thread has waited for a processor; 0 where the system does not count it."""
    try:
        fields = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return 0.0
    return int(fields[1]) / 1e9


class _Guarded(Stretches):
    """A coroutine that notes when it enters and leaves each stretch between awaits."""

    def __init__(self, watch: BlockingWatch, inner: Coroutine[Any, Any, Any]) -> None:
        super().__init__(inner, "user code", watch.block_s)
        self._watch = watch

    def resume(self, way: Callable[..., Any], *given: Any) -> Any:
        """Run it up to its next await, under the watch."""
        self._watch.enter()
        try:
            return way(*given)
        finally:
            self._watch.leave()


@dataclass(frozen=True, slots=True, kw_only=True)
class Belongings:
    """Tasks, threads and child processes that a process holds at one moment."""

    tasks: frozenset[asyncio.Task[Any]]
    """Unfinished asyncio tasks."""
    threads: frozenset[threading.Thread]
    """Living threads, without those that run calls of user code."""
    children: frozenset[int]
    """Process ids of living children."""

    @classmethod
    def now(cls) -> Belongings:
        """Count; must be called from inside the event loop."""
        return cls(
            tasks=frozenset(asyncio.all_tasks()),
            threads=frozenset(
                t for t in threading.enumerate() if not t.name.startswith(_OWN_THREADS)
            ),
            children=frozenset(children_of(os.getpid())),
        )

    def leaked_since(self, before: Belongings) -> Iterator[Finding]:
        """A finding for each kind that has grown."""
        if tasks := self.tasks - before.tasks:
            names = ", ".join(sorted(_coroutine_name(task) for task in tasks)[:3])
            yield broken("E404", f"{len(tasks)} asyncio tasks still run: {names}")
        if threads := self.threads - before.threads:
            names = ", ".join(sorted(thread.name for thread in threads)[:3])
            yield broken("E405", f"{len(threads)} threads still run: {names}")
        if children := self.children - before.children:
            yield broken("E406", f"{len(children)} child processes still run")


async def clear_away(before: Belongings) -> None:
    """End the tasks and child processes that came after `before`; threads cannot be ended."""
    now = Belongings.now()
    for task in now.tasks - before.tasks:
        task.cancel()
    for pid in now.children - before.children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(0)


def _coroutine_name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", task.get_name())
