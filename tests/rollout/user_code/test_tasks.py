"""Tasks that user code makes: what ends or holds one of them costs its own rollout alone."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from agentrl.env import StepResult
from agentrl.plugins.user_code import user_call
from agentrl.types import Termination
from tests.rollout.rollout_fakes import Bench, Talk

Make = Callable[..., Bench]
Work = Callable[[], Coroutine[Any, Any, None]]
DONE = StepResult(done=True, rewards=1.0)


async def leaves() -> None:
    await asyncio.sleep(0)
    sys.exit()


async def holds_the_loop() -> None:
    await asyncio.sleep(0)
    time.sleep(60)


async def gathered(work: Work) -> None:
    await asyncio.gather(work(), asyncio.sleep(0))


async def grouped(work: Work) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(work())


async def limited(work: Work) -> None:
    await asyncio.wait_for(work(), 60)


async def of_a_task(work: Work) -> None:
    await asyncio.create_task(gathered(work))


async def left_alone(work: Work) -> None:
    task = asyncio.create_task(work())
    await asyncio.wait([task])
    raise RuntimeError(f"it ended with {task.exception()!r}")


class Splits(Talk):
    """Does its step in tasks, in the first rollout of a group."""

    def __init__(self, way: Callable[[Work], Awaitable[None]], work: Work) -> None:
        super().__init__(DONE)
        self.way, self.work = way, work

    async def step(self, action: Any) -> Any:
        await self.way(self.work)
        return await super().step(action)


@pytest.mark.parametrize("work", [leaves, holds_the_loop])
@pytest.mark.parametrize("way", [gathered, grouped, limited, of_a_task, left_alone])
async def test_a_task_that_ends_or_holds_all(bench: Make, way: Any, work: Work) -> None:
    made = iter([Splits(way, work), Talk(DONE), Talk(DONE)])
    began = time.monotonic()
    group = await bench(["a"], lambda: next(made), env_timeout_s=1.0).group(3)
    assert time.monotonic() - began < 40
    endings = sorted(row.termination for row in group.trajectories)
    assert endings == sorted([Termination.ENV_CRASHED] + [Termination.ENV_DONE] * 2)
    (lost,) = [row for row in group.trajectories if row.termination is Termination.ENV_CRASHED]
    if way is not grouped:  # an ExceptionGroup counts what it holds
        expected = "raised SystemExit()" if work is leaves else "held the event loop"
        assert expected in lost.termination_detail
        assert f"{work.__name__} " in lost.termination_detail


@pytest.mark.filterwarnings("error")
async def test_such_a_task_is_as_any_other() -> None:
    """Fails if a cancellation, a result or what others ask of a task is not as ever."""

    async def waits() -> int:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return 1
        return 0

    async def run() -> None:
        never = asyncio.create_task(waits(), name="never")
        never.cancel()
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        assert "waits" in repr(task)
        assert task.get_stack()[0].f_code.co_name == "waits"
        assert inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_SUSPENDED  # type: ignore[arg-type]
        task.cancel()
        assert await task == 1
        assert never.cancelled()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(60), 0.01)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.gather(never)

    await user_call(run, limit_s=60)
