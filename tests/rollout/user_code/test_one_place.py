"""Environments of other make live in one thread, which may have an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from agentrl.plugins.own_threads import own_thread
from agentrl.rollout.adapters.adapt import load_env_class
from agentrl.types import Termination
from tests.rollout.rollout_fakes import Bench

HERE = f"{__name__}:"
MAIN = threading.get_ident()


class Bound:
    """Asserts that all of it runs in one thread; a constructor that blocks holds nobody up."""

    def __init__(self, config: Any = None) -> None:
        self.made_in = threading.get_ident()
        self.calls: list[str] = []

    def note(self, name: str) -> None:
        assert threading.get_ident() == self.made_in, f"{name} is in another thread"
        self.calls.append(name)

    def reset(self, states: Any) -> Any:
        self.note("reset")
        return {"observation": states["observation"]}

    def step(self, states: Any) -> Any:
        self.note("step")
        time.sleep(0.3)
        return {"rewards": 1.0, "done": True}

    def close(self) -> None:
        self.note("close")
        assert self.calls[-3:] == ["reset", "step", "close"]


class AwaitsFirst(Bound):
    async def reset(self, states: Any) -> Any:
        await asyncio.sleep(0.01)
        return super().reset(states)


class AwaitsThen(Bound):
    async def step(self, states: Any) -> Any:
        await asyncio.sleep(0.01)
        return super().step(states)


class BeganToAwait(Bound):
    async def __init__(self) -> None:  # type: ignore[misc]
        await asyncio.sleep(0.01)
        super().__init__()


class ReturnsAFuture(Bound):
    def reset(self, states: Any) -> Any:
        async def later() -> Any:
            await asyncio.sleep(0.01)
            return super(ReturnsAFuture, self).reset(states)

        return asyncio.ensure_future(later())

    def step(self, states: Any) -> Any:
        async def later() -> Any:
            await asyncio.sleep(0.01)
            return super(ReturnsAFuture, self).step(states)

        return asyncio.get_event_loop().run_until_complete(later())

    def close(self) -> None:
        asyncio.run(asyncio.sleep(0.01))
        super().close()


class OfVerl(Bound):
    def start_interaction(self, instance_id: Any = None, **given: Any) -> str:
        self.note("start")
        return "one"

    def generate_response(self, instance_id: str, messages: Any, **given: Any) -> Any:
        self.note("respond")
        time.sleep(0.3)
        return True, "", 1.0, {}

    def finalize_interaction(self) -> None:
        self.note("finalize")

    reset = step = None  # type: ignore[assignment]


def made() -> Any:
    return Bound()


@pytest.mark.parametrize(
    "name",
    ["Bound", "AwaitsFirst", "AwaitsThen", "BeganToAwait", "ReturnsAFuture", "OfVerl", "made"],
)
async def test_all_of_it_runs_in_one_thread_and_holds_up_nobody(
    bench: Callable[..., Bench], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if a connection made in one method is used in another thread, or the loop is held."""
    turns: list[float] = []

    async def count() -> None:
        while True:
            turns.append(time.monotonic())
            await asyncio.sleep(0.01)

    make, counting = load_env_class(HERE + name), asyncio.create_task(count())
    for _ in range(2):  # the first that a function makes, and those after it
        rolled = bench(["a"], make)
        began = len(turns)
        row = await rolled.one()
        assert row.termination is Termination.ENV_DONE, row.termination_detail
        assert row.reward == 1.0
        assert len(turns) - began > 5, "the loop stood still while step slept"
    counting.cancel()
    assert "another thread" not in caplog.text


async def test_a_function_in_a_thread_may_use_the_loop_of_its_thread() -> None:
    """Fails if a reward function of verl's time, which asks for a loop, finds none."""

    def one() -> Any:
        loop = asyncio.get_event_loop()
        asyncio.ensure_future(asyncio.sleep(600))  # noqa: RUF006 - left behind
        return loop.run_until_complete(asyncio.sleep(0, "done"))

    assert await own_thread(one) == "done"
    here = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, here.set_result, 4)
    assert await own_thread(lambda: here) == 4  # of another loop: it is awaited there
