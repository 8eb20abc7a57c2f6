"""The one place in which all methods of an environment of other make run.

Its objects may belong to a thread, as a connection of sqlite does, or to an event loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from agentrl.plugins.own_threads import OwnThread
from agentrl.plugins.thread_loop import run_here


class OnePlace:
    """The event loop where all that may take long awaits; else one thread, with a loop of its own.

    A class of which one method awaits and another does not lives in its thread, too, so that the
    latter holds up no other rollout.
    """

    def __init__(self, cls: type, methods: Iterable[str]) -> None:
        """Choose by the methods of a class that are called for each turn."""
        found = [getattr(cls, name, None) for name in methods]
        self._thread = None if all(map(inspect.iscoroutinefunction, found)) else OwnThread()

    @property
    def in_loop(self) -> bool:
        """True where it is the event loop."""
        return self._thread is None

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a method, its constructor or what makes it, and await what is to be awaited."""
        if self._thread is None:
            found = function(*args, **kwargs)
            return await found if inspect.isawaitable(found) else found
        if inspect.iscoroutinefunction(function):
            function = partial(run_here, function)
        return await self._thread.call(function, *args, **kwargs)

    def close(self) -> None:
        """End the thread behind its last call."""
        if self._thread is not None:
            self._thread.close()
