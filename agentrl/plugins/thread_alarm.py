"""Alarms in threads: `signal.alarm` and its kin, for user code outside of the main thread.

Graders written for other trainers limit their time by SIGALRM. Python takes such a call in the
main thread alone, and raises elsewhere, which their own `except` turns into a reward of 0. In a
thread of user code (`agentrl.plugins.own_threads`) the module `signal` therefore
answers for that thread: its
alarm runs the thread's own handler, and what this raises is raised in the thread, at its next
instruction. Whatever else they ask of signals is refused as ever; a limit of time by another clock
is remembered, too, so that it fails the call by name though its error was caught.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from agentrl.plugins.loop_watch import interrupt, take_back

_alarm, _setitimer, _getitimer = signal.alarm, signal.setitimer, signal.getitimer
_signal, _getsignal = signal.signal, signal.getsignal
_MADE_AT_RUN = 1 << 9
"""The flag of a class that is not built into the interpreter."""
_OTHER_LIMITS = (signal.SIGVTALRM, signal.SIGPROF)


class SignalRefused(Exception):
    """User code asked for a limit of time that no thread can have."""


class _ThreadAlarm:
    """The alarm of one thread while it runs user code."""

    def __init__(self) -> None:
        self.handler: Any = signal.SIG_DFL
        self.refused = ""
        self._thread = threading.get_ident()
        self._timer: threading.Timer | None = None
        self._rings_at = self._interval = 0.0
        # Reentrant: an exception of the alarm may arrive in the middle of a call.
        self._lock = threading.RLock()

    def set(self, seconds: float, interval: float) -> tuple[float, float]:
        """Set or clear it; returns what was left of the one before."""
        with self._lock:
            before = self.left()
            if self._timer is not None:
                self._timer.cancel()
                if threading.get_ident() == self._thread:
                    take_back()  # one that has not arrived yet
            self._timer, self._interval = None, interval
            if seconds > 0:
                self._rings_at = monotonic() + seconds
                self._timer = timer = threading.Timer(seconds, self._ring)
                timer.args = (timer,)
                timer.daemon = True
                timer.start()
            return before

    def left(self) -> tuple[float, float]:
        """Seconds until it rings, and between two rings."""
        if self._timer is None:
            return 0.0, 0.0
        return max(1e-6, self._rings_at - monotonic()), self._interval

    def _ring(self, timer: threading.Timer) -> None:
        """Run the handler, and raise in the thread what it raises."""
        with self._lock:
            if timer is not self._timer:
                return
            # As the system does: before the handler, which may set it anew.
            self._timer = None
            self.set(self._interval, self._interval)
            handler, _local.alarm = self.handler, self
            if callable(handler):
                try:
                    handler(signal.SIGALRM, sys._current_frames().get(self._thread))
                except BaseException as error:  # of the user's handler, meant for the thread
                    interrupt(self._thread, _same(error))
            elif handler is not signal.SIG_IGN:
                interrupt(self._thread, _same(TimeoutError("Alarm clock")))


def _same(error: BaseException) -> type[BaseException]:
    """A class whose instances are as `error`: an exception reaches a thread as a class alone."""
    kind: Any = type(error)
    base = kind
    while base.__flags__ & _MADE_AT_RUN:  # up to the one that its memory is laid out for
        base = base.__base__
    _, given, *_ = base.__reduce__(error)  # more than its args: the file of an OSError

    def made(cls: Any, *args: Any) -> Any:
        return base.__new__(cls, *given)

    def begin(self: Any, *args: Any) -> None:
        base.__init__(self, *given)
        self.__dict__.update(error.__dict__)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**names, "__new__": made, "__init__": begin})


class _Local(threading.local):
    alarm: _ThreadAlarm | None = None


_local = _Local()


def _in_child() -> None:
    """Leave a forked process its signals; its one thread is the main one, with this handler."""
    alarm, _local.alarm = _local.alarm, None
    if alarm is not None:
        _signal(signal.SIGALRM, alarm.handler)


os.register_at_fork(after_in_child=_in_child)


@contextmanager
def alarms_in_thread(who: str) -> Iterator[None]:
    """Answer `signal.alarm` and its kin for the present thread.

    Args:
        who: name of the user code.

    Raises:
        SignalRefused: it asked for a limit that no thread can have, whatever it made of the error.
    """
    answer_in_threads()
    _local.alarm = alarm = _ThreadAlarm()
    try:
        yield
    finally:
        _local.alarm = None
        alarm.set(0, 0)
    if alarm.refused:
        raise SignalRefused(
            f"{who} calls {alarm.refused}, which works in the main thread alone; of limits of "
            "time, only SIGALRM with signal.alarm and signal.setitimer works here"
        )


def _refuse(alarm: _ThreadAlarm, call: str) -> None:
    frame = sys._getframe(2)
    alarm.refused = f"{call} at {frame.f_code.co_filename}:{frame.f_lineno}"
    raise ValueError(f"{call} works in the main thread alone")


def _thread_signal(signalnum: Any, handler: Any) -> Any:
    if (alarm := _local.alarm) is None:
        return _signal(signalnum, handler)
    if signalnum != signal.SIGALRM:
        if signalnum not in _OTHER_LIMITS:
            return _signal(signalnum, handler)  # raises, which libraries expect and catch
        _refuse(alarm, f"signal.signal({signal.Signals(signalnum).name}, ...)")
    before, alarm.handler = alarm.handler, handler
    return before


def _thread_getsignal(signalnum: Any) -> Any:
    alarm = _local.alarm
    return _getsignal(signalnum) if alarm is None or signalnum != signal.SIGALRM else alarm.handler


def _thread_alarm(seconds: int, /) -> int:
    if (alarm := _local.alarm) is None:
        return _alarm(seconds)
    left, _ = alarm.set(seconds, 0.0)
    return -int(-left // 1)


def _thread_setitimer(which: int, seconds: float, interval: float = 0.0, /) -> Any:
    if (alarm := _local.alarm) is None:
        return _setitimer(which, seconds, interval)
    if which != signal.ITIMER_REAL:
        _refuse(alarm, "signal.setitimer of another clock than ITIMER_REAL")
    return alarm.set(seconds, interval)


def _thread_getitimer(which: int, /) -> Any:
    alarm = _local.alarm
    return _getitimer(which) if alarm is None or which != signal.ITIMER_REAL else alarm.left()


_ANSWERS: dict[str, Callable[..., Any]] = {
    "signal": _thread_signal,
    "getsignal": _thread_getsignal,
    "alarm": _thread_alarm,
    "setitimer": _thread_setitimer,
    "getitimer": _thread_getitimer,
}


def answer_in_threads() -> None:
    """Have the module `signal` answer for threads of user code. Idempotent.

    Call it before user code is imported, which may take the functions from the module by name.
    """
    for name, answer in _ANSWERS.items():
        setattr(signal, name, answer)
