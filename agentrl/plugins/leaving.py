"""The end of a process in which user code left tasks or threads that do not end.

An event loop waits for every task it cancels, and Python for every thread that is no daemon. User
code may leave either behind. What is over ends all the same, within seconds, and
names what it left. A daemon thread may be in a library that aborts the process where the
interpreter ends below it: then the process ends before its interpreter.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentrl.plugins.own_threads import THREAD_NAME
from agentrl.plugins.user_code import place_in

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TASKS_S = 5.0
_THREADS_S = 5.0
_status: int | None = None
"""Exit status of this process, once its work is done."""


async def ends_alone(work: Coroutine[Any, Any, T]) -> T:
    """Await the whole work of a loop, and leave behind the tasks that refuse to be cancelled."""
    try:
        return await work
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_TASKS_S)
        for task in others:
            if not task.done():
                frames = task.get_stack(limit=1)
                at = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else ""
                logger.warning("a task refuses to be cancelled and is left behind: %s", at)
                asyncio.tasks._unregister_task(task)  # pyright: ignore


def end_in_time(status: int) -> None:
    """End this process in seconds, with this status; call it when all of its work is done.

    Threads that are still at work then are named on the error stream. Nothing happens where the
    process ends earlier, as it should.
    """
    global _status
    _status = status
    threading.Thread(target=_end, args=(status,), name="end-in-time", daemon=True).start()


@atexit.register  # imported before the libraries of users: runs when theirs have run
def _end_before_interpreter() -> None:
    at_work = any(thread.name == THREAD_NAME for thread in threading.enumerate())
    if _status is not None and at_work:
        _leave(_status)


def _end(status: int) -> None:
    time.sleep(_THREADS_S)
    while not (left := [*_threads(), *_processes()]):
        time.sleep(1.0)
    names = "; ".join(left)
    sys.stderr.write(f"agentrl: ends without waiting for what user code left behind: {names}\n")
    _leave(status)


def _leave(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _threads() -> list[str]:
    return [
        f"thread {thread.name} in {place_in(thread.ident or 0) or 'a library'}"
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]


def _processes() -> list[str]:
    found = [one for one in multiprocessing.active_children() if not one.daemon]
    for one in found:
        one.kill()
    return [f"process {one.name}" for one in found]
