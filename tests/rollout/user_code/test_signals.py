"""Alarms and other signals in threads of user code, and in the processes it forks there."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from agentrl.plugins.own_threads import own_thread
from agentrl.plugins.thread_alarm import SignalRefused, answer_in_threads


@pytest.fixture(autouse=True)
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("signal", "getsignal", "alarm", "setitimer", "getitimer"):
        monkeypatch.setattr(signal, name, getattr(signal, name))  # put back behind the test
    answer_in_threads()


def _wait() -> None:
    """Wait for an exception, which arrives between two instructions."""
    while True:
        time.sleep(0.001)


class OwnTimeout(ValueError, TimeoutError):
    """Of a user, with a value of its own."""

    def __init__(self, limit: float) -> None:
        super().__init__("late")
        self.limit = limit


DONE: dict[str, Any] = {}
"""Names of a program that is run as graders of code do; its classes belong to `builtins`."""
exec("class Late(Exception):\n    def __init__(self):\n        super().__init__('late', 3)", DONE)

RAISED: list[BaseException] = [
    TimeoutError(),
    TimeoutError("late"),
    TimeoutError(110, "late", "file"),
    OwnTimeout(3.0),
    UnicodeDecodeError("utf-8", b"a", 0, 1, "bad"),
    ExceptionGroup("several", [TimeoutError("late")]),
    SystemExit(3),
    DONE["Late"](),
]


@pytest.mark.parametrize("error", RAISED, ids=[type(one).__name__ for one in RAISED])
async def test_what_a_handler_raises_arrives_as_it_was(error: BaseException) -> None:
    def late(number: int, frame: Any) -> None:
        raise error

    def grade() -> Any:
        signal.signal(signal.SIGALRM, late)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            _wait()
        except type(error) as found:
            return found

    found = await own_thread(grade)
    assert isinstance(found, type(error))
    assert (str(found), found.args) == (str(error), error.args)
    for name in ("errno", "strerror", "filename", "limit", "object", "exceptions", "code"):
        assert getattr(found, name, None) == getattr(error, name, None)


async def test_a_handler_that_sets_the_alarm_again() -> None:
    """Fails if it sets the alarm of the process, or the second one is lost."""
    rung = []

    def late(number: int, frame: Any) -> None:
        rung.append(number)
        signal.setitimer(signal.ITIMER_REAL, 0.5 if len(rung) < 2 else 0)
        raise TimeoutError

    def grade() -> list[int]:
        signal.signal(signal.SIGALRM, late)
        with contextlib.suppress(TimeoutError):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            _wait()
        assert len(rung) == 1
        with contextlib.suppress(TimeoutError):
            _wait()
        return rung

    assert await own_thread(grade) == [signal.SIGALRM] * 2


def _status(child: Callable[[], Any]) -> int:
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _ends_late() -> None:
    def late(number: int, frame: Any) -> None:
        os._exit(7)

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(10)


def _in_a_child() -> tuple[int, ...]:
    def inherited(number: int, frame: Any) -> None:
        os._exit(9)

    signal.signal(signal.SIGALRM, inherited)
    limited = subprocess.run(
        ["sleep", "20"],
        preexec_fn=lambda: (
            signal.signal(signal.SIGPIPE, signal.SIG_DFL),
            signal.setitimer(signal.ITIMER_REAL, 0.05),
        ),
    )
    return (
        _status(lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)),
        _status(_ends_late),
        _status(lambda: (signal.setitimer(signal.ITIMER_REAL, 0.01), time.sleep(10))),
        limited.returncode,
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_forked_child_has_signals_of_its_own() -> None:
    assert await own_thread(_in_a_child) == (0, 7, 9, -signal.SIGALRM)


async def test_a_caught_refusal_fails_the_call_only_for_a_limit_of_time() -> None:
    def asks(number: signal.Signals) -> float:
        try:
            signal.signal(number, signal.SIG_IGN)
        except ValueError:
            return 1.0
        return 0.0

    def other_clock() -> None:
        with contextlib.suppress(ValueError):
            signal.setitimer(signal.ITIMER_VIRTUAL, 1)

    assert await own_thread(asks, signal.SIGTERM) == 1.0
    with pytest.raises(SignalRefused, match=r"SIGPROF.* at .*test_signals.py:\d+"):
        await own_thread(asks, signal.SIGPROF)
    with pytest.raises(SignalRefused, match="another clock"):
        await own_thread(other_clock)
