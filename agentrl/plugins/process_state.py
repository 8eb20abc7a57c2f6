"""Puts back what belongs to the whole process where user code left it changed.

Closed standard streams, a clock that somebody replaced for a test, an alarm that is still set: each
would reach the other rollouts, or end the run. It is put back when the call is over.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]
import contextlib
import io
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger(__name__)

_CLOCKS = {
    name: getattr(time, name)
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep")
}
# Of the interpreter itself: those of `signal` cost ten times as much, at each await of user code.
handler_of, _getitimer = _signal.getsignal, _signal.getitimer
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD)
_STREAMS = {1: ("stdout", "__stdout__"), 2: ("stderr", "__stderr__")}
_saved: dict[int, int] = {}
"""Copies of the open ones among the standard streams' descriptors, by descriptor."""

_FILES = 2**17

State = tuple[Any, ...]
"""First the level up to which logs are off; then, in the main thread, whether the alarm was set,
and the handlers of `_SIGNALS`."""


def is_main_thread() -> bool:
    """Return true in the one thread that handles signals."""
    return threading.get_ident() == threading.main_thread().ident


def note() -> State:
    """Note what a function may change from the present thread."""
    off = logging.root.manager.disable
    if not is_main_thread():
        return (off,)
    return (off, _getitimer(signal.ITIMER_REAL)[0] > 0, *map(handler_of, _SIGNALS))


def restore(before: State, who: str) -> None:
    """Put back what user code left changed, and log what that was.

    Args:
        before: what `note` gave before it ran.
        who: name of the user code.
    """
    off, *signals = before
    changed = [*_restored_signals(signals), *_restored_clocks(), *_restored_streams()]
    if logging.root.manager.disable > off:
        logging.disable(off)
        changed.append("logging.disable")
    if changed:
        logger.warning(
            "%s changed %s, which belong to the whole process; they were put back",
            who,
            ", ".join(changed),
        )


def protect() -> None:
    """Keep what user code must not change; call it before the first user code runs. Idempotent."""
    if _saved:
        return
    for number, names in _STREAMS.items():
        with contextlib.suppress(OSError):  # a process without it
            _saved[number] = os.dup(number)
        for name in names:
            stream = getattr(sys, name)
            if type(stream) is io.TextIOWrapper and stream.fileno() == number:
                stream.close = stream.flush  # type: ignore[method-assign]
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        # One that opens files without end, and is closed later, takes none from the others.
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, min(most, _FILES)), most))
    usual, set_limit = sys.getrecursionlimit(), sys.setrecursionlimit

    def at_least_usual(limit: int, /) -> None:
        """As `sys.setrecursionlimit`, but never below the limit that all threads rely on."""
        if limit < usual:
            frame = sys._getframe(1)
            logger.warning(
                "%s at %s:%d asked for a recursion limit of %d; it holds for the whole process, "
                "and stays at %d",
                frame.f_code.co_name,
                frame.f_code.co_filename,
                frame.f_lineno,
                limit,
                usual,
            )
        set_limit(max(limit, usual))

    sys.setrecursionlimit = at_least_usual


def _restored_signals(before: list[Any]) -> Iterator[str]:
    if not before:
        return
    alarm, *handlers = before
    if not alarm and _getitimer(signal.ITIMER_REAL)[0] > 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
        yield "the alarm of the process"
    for number, handler in zip(_SIGNALS, handlers, strict=True):
        # None is a handler that no Python code set.
        if handler is not None and handler_of(number) is not handler:
            signal.signal(number, handler)
            yield f"the handler of {number.name}"


def _restored_clocks() -> Iterator[str]:
    for name, clock in _CLOCKS.items():
        if getattr(time, name) is not clock:
            setattr(time, name, clock)
            yield f"time.{name}"


def _restored_streams() -> Iterator[str]:
    for number, saved in _saved.items():
        try:
            os.fstat(number)
        except OSError:
            os.dup2(saved, number)
            yield f"file descriptor {number}"
        for name in _STREAMS[number]:
            stream = getattr(sys, name)
            if _is_open(stream):
                continue
            if isinstance(stream, io.TextIOWrapper):
                # In its place: consoles and log handlers hold the object.
                raw = open(number, "wb", closefd=False)  # noqa: SIM115 - lives as the process does
                stream.__init__(raw, encoding="utf-8", errors="replace", line_buffering=True)
            else:
                setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
            yield f"sys.{name}"


def _is_open(stream: Any) -> bool:
    try:
        return not stream.closed
    except ValueError:  # detached
        return False
    except AttributeError:  # None, or what only has `write`
        return hasattr(stream, "write")
