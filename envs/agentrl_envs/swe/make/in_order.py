"""Work done side by side whose results come in the order of the work."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def in_order(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Result]], jobs: int
) -> AsyncGenerator[Result]:
    """The results of `work` on each item, in order, with up to `jobs` of them under way.

    When the caller closes it, what is under way is cancelled and waited for; so a caller that may
    stop early uses `contextlib.aclosing`.
    """
    slots = asyncio.Semaphore(jobs)

    async def one(item: Item) -> Result:
        async with slots:
            return await work(item)

    under_way: deque[asyncio.Task[Result]] = deque()
    source = iter(items)
    try:
        while True:
            # Twice as many as there are slots: a slow first item leaves no slot idle.
            while len(under_way) < 2 * jobs:
                item = await asyncio.to_thread(next, source, None)
                if item is None:
                    break
                under_way.append(asyncio.create_task(one(item)))
            if not under_way:
                return
            yield await under_way.popleft()
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
