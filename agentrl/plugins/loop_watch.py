"""Interrupts user code that holds an event loop for longer than its limit.

A stretch is what user code runs between two awaits. While one lasts, no other rollout of the
process goes on; so a stretch has a limit, and a thread watches it. In the main thread a
signal of its own interrupts it, in the middle of `time.sleep` or a regular expression, too; in
another thread an exception does, at the next instruction. The clock of the loop stands still, so
that the limits of other rollouts do not run out for it. A limit is counted in ticks of the watching
thread: while the machine runs neither, no time passes.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import _GeneratorContextManager, contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, sleep
from types import FrameType
from typing import Any

from agentrl.plugins.process_state import State, handler_of, is_main_thread, note, protect, restore

_SIGNAL = signal.SIGRTMAX - 5
"""One that no library uses, and that ends no process that ignores it."""
_TICK_S = 0.1
_AGAIN_S = 1.0
"""Until it is interrupted again: code may catch everything, or wait in a `finally`."""


class _TakenBack(BaseException):
    """Raised in place of an exception that came too late."""


class HeldTooLong(BaseException):
    """Raised inside code that held the event loop too long; no `except Exception` hides it."""


@dataclass(slots=True, eq=False)
class _Open:
    """A stretch that lasts."""

    thread: int
    who: str
    ticks_left: float
    began: float
    outer: _Open | None
    before: State
    interrupted: bool = False


_EXIT = _GeneratorContextManager.__exit__.__code__
"""Code between a block of user code and the end of its stretch."""
_open: dict[int, _Open] = {}
"""By thread, the innermost stretch that lasts."""
_jobs: set[Callable[[], None]] = set()
"""What else the watching thread does at each tick."""
_starting = threading.Lock()
_watcher: threading.Thread | None = None


def interrupt(thread: int, error: type[BaseException]) -> None:
    """Raise an exception in a thread at its next instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def take_back() -> None:
    """Take back what `interrupt` did not raise yet in the present thread.

    It is replaced, and raised here. Where it is only cleared, Python 3.11 goes on to look for it,
    and goes round without end under a debugger or a profiler.
    """
    with suppress(_TakenBack):
        interrupt(threading.get_ident(), _TakenBack)
        while True:
            pass


def at_each_tick(job: Callable[[], None]) -> None:
    """Have the watching thread call `job` ten times a second from now on."""
    _jobs.add(job)
    _watch()


def is_watched(thread: int) -> bool:
    """Return true while a stretch lasts in a thread."""
    return thread in _open


@contextmanager
def stretch(who: str, limit_s: float) -> Iterator[None]:
    """Run user code that does not await; what it changed in the process is restored afterwards.

    Args:
        who: name of the user code.
        limit_s: seconds that it may take.

    Raises:
        HeldTooLong: it took longer.
    """
    one = _enter(who, limit_s)
    try:
        yield
    finally:
        try:
            _leave(one)
        except HeldTooLong:  # it came too late
            _leave(one)


class Stretches(Coroutine[Any, Any, Any]):
    """A coroutine, of which each part that runs between two awaits is a `stretch`."""

    def __init__(self, inner: Coroutine[Any, Any, Any], who: str, limit_s: float) -> None:
        """Take the coroutine, and name and limit of its stretches."""
        self._inner, self._who, self._limit_s = inner, who, limit_s

    def resume(self, way: Callable[..., Any], *given: Any) -> Any:
        """Run it up to its next await, by `send` or `throw` of the coroutine."""
        one = _enter(self._who, self._limit_s)
        try:
            return way(*given)
        finally:
            try:
                _leave(one)
            except HeldTooLong:  # it came too late
                _leave(one)

    def send(self, value: Any) -> Any:
        """Resume it with a value."""
        return self.resume(self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        """Resume it with an error; cancellation, too, belongs to the coroutine."""
        return self.resume(self._inner.throw, *error)

    def close(self) -> None:
        """Close it, which runs what stands behind its `finally`."""
        self.resume(self._inner.close)

    def __await__(self) -> Generator[Any, Any, Any]:
        """Await it."""
        return self  # type: ignore[return-value]

    def __next__(self) -> Any:
        """Resume it without a value."""
        return self.send(None)

    def __iter__(self) -> Iterator[Any]:
        """Of what is awaited."""
        return self

    def __getattr__(self, name: str) -> Any:
        """What else others ask of a coroutine, as its frame."""
        return getattr(self._inner, name)


def _enter(who: str, limit_s: float) -> _Open:
    _watch()
    thread = threading.get_ident()
    one = _Open(thread, who, limit_s / _TICK_S, monotonic(), _open.get(thread), note())
    _open[thread] = one
    return one


def _leave(one: _Open) -> None:
    if one.outer is None:
        _open.pop(one.thread, None)
    else:
        _open[one.thread] = one.outer
    if one.interrupted:
        take_back()  # one that came too late would hit our own code
        _stand_still(monotonic() - one.began)
    restore(one.before, one.who)


def _stand_still(seconds: float) -> None:
    """Set the clock of the running loop back by a time in which it could do nothing."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # a thread without one
        return
    if not isinstance(loop.time, _LoopTime):
        loop.time = _LoopTime(loop.time)
    loop.time.behind_s += seconds


class _LoopTime:
    """The clock of a loop, without the time in which it was held."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.behind_s = clock, 0.0

    def __call__(self) -> float:
        return self._clock() - self.behind_s


def _watch() -> None:
    """Start what watches, in this process and for this thread."""
    global _watcher
    if is_main_thread() and handler_of(_SIGNAL) is not _on_signal:
        signal.signal(_SIGNAL, _on_signal)
    if _watcher is not None and _watcher.is_alive():
        return
    with _starting:
        if _watcher is None or not _watcher.is_alive():
            protect()
            _watcher = threading.Thread(target=_tick, name="user-code-watch", daemon=True)
            _watcher.start()


def _tick() -> None:
    main = threading.main_thread().ident
    while True:
        sleep(_TICK_S)
        for one in list(_open.values()):
            one.ticks_left -= 1
            if one.ticks_left > 0 or _open.get(one.thread) is not one:
                continue
            one.ticks_left, one.interrupted = _AGAIN_S / _TICK_S, True
            if one.thread == main:
                signal.pthread_kill(one.thread, _SIGNAL)
            else:
                interrupt(one.thread, HeldTooLong)
        for job in list(_jobs):
            job()


def _on_signal(number: int, frame: FrameType | None) -> None:
    one = _open.get(threading.get_ident())
    if one is None or not one.interrupted or (frame is not None and frame.f_code is _EXIT):
        return  # at the exit it would leave the stretch open; it comes again if that hangs
    raise HeldTooLong
