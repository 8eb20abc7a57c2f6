"""Ways in which code of users misbehaves; each is a function of no arguments that returns a value.

What a way returns is given back in the place of a reward where the place has one. The module is
copied into projects, so it imports nothing of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

MEGABYTE = 2**20
KEPT: list[Any] = []
"""Tasks that are never awaited."""
OVER: list[bool] = []
"""Not empty once tasks may end."""
FILES: list[int] = []
"""Descriptors that are never closed."""


class Panic(BaseException):
    """As an extension in Rust raises."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def hang() -> None:
    time.sleep(600)


def circles() -> None:
    while True:
        pass


def leave() -> None:
    sys.exit()


def panic() -> None:
    raise Panic("index out of bounds")


def cancelled() -> None:
    raise asyncio.CancelledError


def stop_iteration() -> None:
    next(iter(()))


def chdir() -> None:
    os.chdir("/")


def close_stdout() -> None:
    sys.stdout.close()
    sys.stderr.close()


def close_descriptors() -> None:
    os.close(1)


def endless_recursion() -> Any:
    return endless_recursion()


def low_recursion_limit() -> None:
    sys.setrecursionlimit(60)


def alarm_left_on() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.05)


def signals_ignored() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def fork() -> None:
    os.fork()


def print_much() -> None:
    sys.stdout.write("x" * (4 * MEGABYTE) + "\n")


def return_much() -> str:
    return "x" * (30 * MEGABYTE)


def return_a_long_list() -> list[float]:
    return [0.0] * 1_000_000


def raise_much() -> None:
    raise ValueError("x" * (30 * MEGABYTE))


def thread_left_behind() -> None:
    threading.Thread(target=time.sleep, args=(600,), name="left-behind").start()


def task_left_behind() -> None:
    async def stubborn() -> None:
        while not OVER:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(600)

    with contextlib.suppress(RuntimeError):  # a thread without a loop
        KEPT.append(asyncio.get_running_loop().create_task(stubborn()))


def nan() -> float:
    return float("nan")


def overflow() -> float:
    return 1e308


def huge_number() -> int:
    return 10**400


def wrong_type() -> Any:
    return {"not": "a reward"}


def unprintable() -> None:
    raise Unprintable


def unpicklable() -> None:
    raise Unpicklable("a socket")


def patch_clock() -> None:
    time.time = time.monotonic = lambda: "noon"  # type: ignore[assignment,return-value]


def many_files() -> None:
    with contextlib.suppress(OSError):
        if FILES:  # the most that one process may have open is not ours to choose
            return
        for _ in range(10_000):
            FILES.append(os.open(os.devnull, os.O_RDONLY))


def set_variable() -> None:
    os.environ["ODD_VARIABLE"] = "1"


def no_logging() -> None:
    logging.disable(logging.CRITICAL)


WAYS: dict[str, Callable[[], Any]] = {
    way.__name__: way
    for way in (
        many_files,  # first: behind code that still goes round, each file waits for a turn
        hang,
        circles,
        leave,
        panic,
        cancelled,
        stop_iteration,
        chdir,
        close_stdout,
        close_descriptors,
        endless_recursion,
        low_recursion_limit,
        alarm_left_on,
        signals_ignored,
        fork,
        print_much,
        return_much,
        return_a_long_list,
        raise_much,
        thread_left_behind,
        task_left_behind,
        nan,
        overflow,
        huge_number,
        wrong_type,
        unprintable,
        unpicklable,
        patch_clock,
        no_logging,
        set_variable,
    )
}
HARMLESS = frozenset(
    {
        "chdir",
        "close_stdout",
        "close_descriptors",
        "low_recursion_limit",
        "alarm_left_on",
        "print_much",
        "thread_left_behind",
        "patch_clock",
        "many_files",
        "no_logging",
        "set_variable",
    }
)
"""Those that cost not even their own rollout."""
