"""Time limits that a late event loop does not use up."""

from __future__ import annotations

import asyncio
import time

import pytest

from agentrl.serving.loop_timeout import PARTS, LoopTimeout


async def late(passes: int, seconds: float) -> None:
    """Hold each pass of the loop for so long."""
    for _ in range(passes):
        time.sleep(seconds)
        await asyncio.sleep(0)


async def test_a_prompt_loop_has_the_limit_that_was_asked() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with LoopTimeout(0.4) as limit:
            await asyncio.sleep(600)
    assert limit.expired
    assert 0.39 < time.monotonic() - began < 120


async def test_time_for_which_the_loop_was_held_does_not_count() -> None:
    # Fails if the limit looks at the clock: 1 s is held, and 0.2 s are allowed.
    async with LoopTimeout(0.2) as limit:
        await late(20, 0.05)
    assert not limit.expired


async def test_a_late_loop_has_an_end_too() -> None:
    with pytest.raises(TimeoutError):
        async with LoopTimeout(0.01):
            await asyncio.gather(asyncio.sleep(600), late(4 * PARTS, 0.005))


async def test_one_that_ends_in_time_leaves_no_timer() -> None:
    loop = asyncio.get_running_loop()
    async with LoopTimeout(0.05):
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    assert not [handle for handle in loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]


async def test_other_cancellations_stay_what_they_are() -> None:
    async def work() -> None:
        async with LoopTimeout(60):
            await asyncio.sleep(600)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
