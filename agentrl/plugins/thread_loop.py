"""An event loop for each thread of user code, made where its code first asks for one.

A method that is no coroutine may return `asyncio.ensure_future(...)`, or run its coroutines by
`asyncio.get_event_loop().run_until_complete(...)`, as it may in the main thread of a program. What
it begins so is finished in its thread. `asyncio.run` makes a loop of its own, there as anywhere.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_local = threading.local()
_END_S = 1.0
"""Seconds in which tasks may end that a thread leaves behind."""


class _LateLoop(asyncio.AbstractEventLoop):
    """Stands for the loop of the present thread until it is asked for anything."""

    def __getattribute__(self, name: str) -> Any:
        """An attribute of the loop, which is made for the first one."""
        if name == "__class__":
            return _LateLoop
        real = getattr(_local, "loop", None)
        if real is None or real.is_closed():
            real = _local.loop = asyncio.new_event_loop()
        return getattr(real, name)


def call_here(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function, and finish what it returns where that is of the loop of this thread."""
    asyncio.set_event_loop(_LateLoop())
    found = function(*args, **kwargs)
    real = getattr(_local, "loop", None)
    if real is not None and asyncio.isfuture(found) and found.get_loop() is real:
        return real.run_until_complete(found)
    return found


def run_here(function: Callable[..., Coroutine[Any, Any, Any]], /, *args: Any, **kw: Any) -> Any:
    """Run a coroutine function in the loop of this thread; `call_here` must have called this."""
    return asyncio.get_event_loop().run_until_complete(function(*args, **kw))


def end_loop() -> None:
    """Close the loop of this thread, if it has one, and cancel what is left in it."""
    loop: asyncio.AbstractEventLoop | None = getattr(_local, "loop", None)
    if loop is None or loop.is_closed():
        return
    if tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=_END_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
