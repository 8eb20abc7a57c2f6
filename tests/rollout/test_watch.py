"""One timer for many limits behaves as `asyncio.timeout` does."""

from __future__ import annotations

import asyncio
import time

import pytest

from agentrl.rollout.watch import DeadlineWatch


async def test_each_await_has_its_own_limit():
    """Fails if the timer of an earlier, longer or shorter limit decides."""
    watch = DeadlineWatch()
    for limit, work, expires in [
        (5.0, 0.01, False),
        (0.03, 60.0, True),
        (0.3, 0.0, False),
        (5.0, 0.5, False),  # the timer of the limit before goes off in here
        (0.03, 60.0, True),
        (-1.0, 60.0, True),
    ]:
        started = time.monotonic()
        if expires:
            with pytest.raises(TimeoutError):
                with watch.limit(limit):
                    await asyncio.sleep(work)
            assert max(limit, 0.0) - 0.005 <= time.monotonic() - started < work
        else:
            with watch.limit(limit):
                await asyncio.sleep(work)
        assert watch.expired is expires
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0.05)
    watch.close()


async def test_a_cancellation_from_outside_wins():
    """Fails if an expired limit turns every cancellation into a time-out: then a rollout could
    not be stopped while one of its limits runs out."""

    async def both() -> None:
        watch = DeadlineWatch()
        with watch.limit(0.01):
            try:
                await asyncio.sleep(600)
            finally:
                task.cancel()

    task = asyncio.create_task(both())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_foreign_time_outs_pass_through():
    watch = DeadlineWatch()
    with pytest.raises(TimeoutError, match="mine"):
        with watch.limit(5):
            raise TimeoutError("mine")
    assert not watch.expired
    watch.close()


async def test_no_time_passes_while_it_is_held():
    """Fails if the limit goes off while held, or if what was held is not added to it."""
    watch = DeadlineWatch()
    loop = asyncio.get_running_loop()

    async def held_twice() -> None:
        watch.hold()
        watch.hold()
        await asyncio.sleep(0.2)
        watch.release()
        await asyncio.sleep(0.1)
        watch.release()
        assert not watch.expired
        await asyncio.sleep(600)

    started = loop.time()
    with pytest.raises(TimeoutError), watch.limit(0.1):
        await held_twice()
    assert 0.38 < loop.time() - started < 60
    with pytest.raises(TimeoutError), watch.limit(0.05):
        await asyncio.sleep(600)
    watch.close()
