"""Parsing Python in one thread at a time, off the event loop.

CPython 3.11 counts the depth of the syntax tree under construction in one place for all threads
(https://github.com/python/cpython/issues/106905), so of two that parse at once one may end with
`SystemError: AST constructor recursion depth mismatch`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from weakref import WeakValueDictionary

Result = TypeVar("Result")
_ALONE = threading.Lock()
"""Held by the thread that parses."""
_TURNS: WeakValueDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakValueDictionary()
"""By event loop: those that wait for the thread that parses hold none of its threads."""


def alone(work: Callable[..., Result], *args: Any) -> Result:
    """Call `work` while no other thread parses."""
    with _ALONE:
        return work(*args)


async def parsing(work: Callable[..., Result], *args: Any) -> Result:
    """Call `work`, which parses, in a thread."""
    async with _TURNS.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        return await asyncio.to_thread(alone, work, *args)


def one_by_one(items: Iterator[Result]) -> Iterator[Result]:
    """Items whose making parses; each is made while no other thread does."""
    while True:
        with _ALONE:
            item = next(items, None)
        if item is None:
            return
        yield item
