"""Catches environments that block the event loop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from agentrl.plugins.loop_watch import Stretches
from agentrl.plugins.process_state import note, restore
from agentrl.plugins.user_code import call_limit, place_in, user_code

_TICK_S = 0.1
_STALL_S = 0.1
"""Seconds of one stretch in which the thread neither computes nor waits for a processor."""


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
        self.stalls: list[tuple[float, str]] = []
        """Seconds and place of stretches that held the loop and only waited."""
        self._since: float | None = None
        self._waited_s = self._computed_s = 0.0
        self._place = ""

    def enter(self) -> None:
        """A stretch between two awaits begins."""
        self._place, self._computed_s = "", time.thread_time()
        self._waited_s, self._since = _waited_s(), time.monotonic()

    def leave(self) -> None:
        """The stretch between two awaits ends."""
        since, self._since = self._since, None
        if since is None or (lasted_s := time.monotonic() - since) < _STALL_S:
            return
        waited_s, computed_s = _waited_s(), time.thread_time() - self._computed_s
        idle_s = lasted_s - computed_s - (waited_s - self._waited_s)
        if waited_s and idle_s >= _STALL_S:  # without that count a busy machine looks the same
            self.stalls.append((idle_s, self._place))

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
        self._place = self._place or place_in(threading.get_ident())
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
        off, *signals = note()
        if signals:
            signals[0] = True  # the alarm is that of this watch, also while it goes off
        self._watch.enter()
        try:
            return way(*given)
        finally:
            self._watch.leave()
            restore((off, *signals), "user code")
