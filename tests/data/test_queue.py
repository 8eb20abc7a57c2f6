from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from agentrl.data.queue import Entry, TrajectoryQueue


def entry(index: int) -> Entry[str]:
    return Entry(index=index, began=0, item=str(index))


def first(n: int):
    def choose(entries: Sequence[Entry[str]]) -> list[int] | None:
        return list(range(n)) if len(entries) >= n else None

    return choose


async def test_the_consumer_wakes_when_its_batch_is_there() -> None:
    queue = TrajectoryQueue[str](capacity=4)
    waiting = asyncio.create_task(queue.take(first(2)))
    for index in range(2):
        await asyncio.sleep(0)
        assert not waiting.done()
        queue.put(entry(index))
    assert [item.index for item in await asyncio.wait_for(waiting, 120)] == [0, 1]
    assert len(queue) == 0


async def test_the_order_is_the_one_that_was_chosen() -> None:
    queue = TrajectoryQueue[str](capacity=4)
    for index in range(4):
        queue.put(entry(index))
    taken = await queue.take(lambda entries: [3, 1])
    assert [item.index for item in taken] == [3, 1]
    assert [item.index for item in queue.entries] == [0, 2]


async def test_a_cancelled_consumer_loses_nothing() -> None:
    """Fails if entries are taken out before the wait ends."""
    queue = TrajectoryQueue[str](capacity=2)
    waiting = asyncio.create_task(queue.take(first(2)))
    await asyncio.sleep(0)
    queue.put(entry(0))
    await asyncio.sleep(0)
    queue.put(entry(1))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [item.index for item in await queue.take(first(2))] == [0, 1]


async def test_an_error_of_a_producer_reaches_the_consumer() -> None:
    """Fails if a waiting consumer is not woken, or if what is queued hides the error."""
    queue = TrajectoryQueue[str](capacity=2)
    waiting = asyncio.create_task(queue.take(first(1)))
    await asyncio.sleep(0)
    queue.fail(RuntimeError("first"))
    queue.fail(RuntimeError("second"))
    with pytest.raises(RuntimeError, match="first"):
        await asyncio.wait_for(waiting, 120)
    queue.put(entry(0))
    with pytest.raises(RuntimeError, match="first"):
        await queue.take(first(1))


async def test_more_than_was_allowed_is_a_broken_invariant() -> None:
    queue = TrajectoryQueue[str](capacity=1)
    queue.put(entry(0))
    with pytest.raises(AssertionError, match="back-pressure"):
        queue.put(entry(1))
