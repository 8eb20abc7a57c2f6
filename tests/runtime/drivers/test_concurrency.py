"""The bound on rollouts at once: order, cancellation, and what changes it."""

from __future__ import annotations

import asyncio

from agentrl.metrics import MetricBag
from agentrl.runtime.drivers.concurrency import LEAST, MOST, Concurrency, GroupGate, RolloutLimit
from agentrl.serving.records import EngineState, EngineStats, Routed, Served


class Crowd:
    """Groups of two rollouts that stay inside until they are released."""

    def __init__(self, limit: RolloutLimit) -> None:
        self.gate = GroupGate(limit, 2)
        self.inside: list[int] = []
        self.ends = [asyncio.Event() for _ in range(8)]
        self.tasks = [asyncio.create_task(self.group(index)) for index in range(8)]

    async def group(self, index: int) -> None:
        async with self.gate.room():
            self.inside.append(index)
            await self.ends[index].wait()

    async def end(self, *indices: int) -> None:
        for index in indices:
            self.ends[index].set()
        await settle()


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def test_groups_begin_in_order_and_leave_room_for_others():
    limit = RolloutLimit(5)
    crowd = Crowd(limit)
    await settle()
    assert (crowd.inside, limit.running) == ([0, 1], 4)
    await crowd.end(1)
    assert crowd.inside == [0, 1, 2]
    limit.change(9)
    await settle()
    assert (crowd.inside, limit.running) == ([0, 1, 2, 3, 4], 8)
    limit.change(2)
    await crowd.end(0, 2, 3)
    assert crowd.inside == [0, 1, 2, 3, 4]  # one group runs, and one may
    await crowd.end(4)
    assert crowd.inside == [0, 1, 2, 3, 4, 5]
    await crowd.end(5, 6, 7)
    await asyncio.gather(*crowd.tasks)
    assert (limit.running, limit.when_raised) == (0, set())


async def test_one_group_always_runs():
    limit = RolloutLimit(1)
    crowd = Crowd(limit)
    await settle()
    assert crowd.inside == [0]
    await crowd.end(*range(8))
    await asyncio.gather(*crowd.tasks)


async def test_a_group_that_is_cancelled_takes_no_room():
    """While it waits, and when it was let in and cancelled before its task could run."""
    limit = RolloutLimit(2)
    gate = GroupGate(limit, 2)

    async def group() -> None:
        async with gate.room():
            await asyncio.sleep(30)

    async with gate.room():
        first, second, third = (asyncio.create_task(group()) for _ in range(3))
        await settle()
        first.cancel()
        await settle()
    second.cancel()  # leaving let it in
    await settle()
    assert (first.cancelled(), second.cancelled(), third.done()) == (True, True, False)
    assert limit.running == 2
    third.cancel()
    await settle()
    assert limit.running == 0


def stats(turns: int, again: float, in_flight: int) -> dict[str, EngineStats]:
    served = Served(
        later_turns=turns, prefix_tokens=1000 * turns, recomputed_tokens=int(1000 * turns * again)
    )
    return {
        "a": EngineStats(
            name="a",
            state=EngineState.ACTIVE,
            why="",
            version=0,
            in_flight=in_flight,
            routed=Routed(),
            served=served,
        )
    }


def test_it_follows_the_engines_within_bounds():
    concurrency = Concurrency(64, slots_per_engine=32)
    limit, raised = concurrency.limit, list[int]()
    limit.when_raised.add(lambda: raised.append(limit.value))
    turns = 0
    for _ in range(60):
        limit.running, turns = limit.value, turns + limit.value
        concurrency.observe(stats(turns, 0.5, limit.value))
    assert limit.value == 64 // LEAST
    assert raised == []
    for _ in range(600):
        limit.running, turns = limit.value, turns + limit.value
        concurrency.observe(stats(turns, 0.0, 0))
    assert limit.value == 64 * MOST
    assert raised == sorted(raised) != []
    bag = MetricBag()
    concurrency.note(bag)
    assert bag.result() == {"rollout/concurrency": 64.0 * MOST}


def test_a_fixed_number_stays():
    concurrency = Concurrency(64)
    concurrency.limit.running = 64
    for turns in range(64, 6400, 64):
        concurrency.observe(stats(turns, 0.9, 64))
    assert concurrency.limit.value == 64
