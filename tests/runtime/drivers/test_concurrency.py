"""The bound on rollouts at once: order, cancellation, and what changes it."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.metrics import MetricBag
from agentrl.runtime.drivers.concurrency import LEAST, MOST, Concurrency, GroupGate, RolloutLimit
from agentrl.runtime.drivers.groups import note_speed
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
            await asyncio.sleep(600)

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


def stats(
    turns: int, again: float, in_flight: int, *, sessions: int | None = None
) -> dict[str, EngineStats]:
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
            sessions=in_flight if sessions is None else sessions,
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


class Rollouts:
    """Groups of `n` rollouts of 1 to 30 turns, as many at once as the limit allows; every rollout
    that lives ends one turn between two looks."""

    def __init__(self, concurrency: Concurrency, n: int) -> None:
        self._concurrency, self._n = concurrency, n
        self._lengths = random.Random(n)
        self._groups: list[list[int]] = []
        self._turns = 0

    def look(self, *, again: float, in_turns: float) -> None:
        """Observe once; of the rollouts that live, a share waits for an engine."""
        limit = self._concurrency.limit
        while len(self._groups) < limit.groups(self._n):
            self._groups.append([self._lengths.randint(1, 30) for _ in range(self._n)])
            limit.running += self._n
        live = sum(left > 0 for group in self._groups for left in group)
        self._turns += live
        seen = stats(self._turns, again, round(in_turns * live), sessions=live)
        self._concurrency.observe(seen)
        groups = [[left - 1 for left in group] for group in self._groups]
        self._groups = [group for group in groups if max(group) > 0]
        limit.running -= self._n * (len(groups) - len(self._groups))


@pytest.mark.parametrize("n", [1, 6, 8])
def test_it_grows_to_its_bound_in_groups_of_any_size(n: int):
    """Fails if the limit counts as reached only where it is a multiple of the group size."""
    concurrency = Concurrency(128, slots_per_engine=1024)
    rollouts = Rollouts(concurrency, n)
    for _ in range(600):
        rollouts.look(again=0.0, in_turns=0.2)
    assert concurrency.limit.value == 128 * MOST


def test_it_does_not_grow_where_a_whole_group_more_could_run():
    concurrency = Concurrency(128, slots_per_engine=1024)
    concurrency.limit.groups(8)
    concurrency.limit.running = 120
    for turns in range(100, 20_000, 100):
        concurrency.observe(stats(turns, 0.0, 0))
    assert concurrency.limit.value == 128


@pytest.mark.parametrize("n", [1, 8])
def test_rollouts_that_wait_for_the_rest_of_their_group_hide_no_pressure(n: int):
    """Fails if those that ended before the last of their group count as waiting for tools."""
    concurrency = Concurrency(128, slots_per_engine=64)
    rollouts = Rollouts(concurrency, n)
    for _ in range(600):  # until groups of all ages run
        rollouts.look(again=0.05, in_turns=1.0)
    assert concurrency.limit.value == 128
    for _ in range(10):
        rollouts.look(again=0.5, in_turns=1.0)
    assert concurrency.limit.value < 128


@pytest.mark.parametrize("n", [1, 8])
def test_rollouts_that_wait_for_tools_shrink_nothing(n: int):
    concurrency = Concurrency(128, slots_per_engine=64)
    rollouts = Rollouts(concurrency, n)
    for _ in range(200):
        rollouts.look(again=0.5, in_turns=0.6)
    assert concurrency.limit.value == 128


def test_a_fixed_number_stays():
    concurrency = Concurrency(64)
    concurrency.limit.running = 64
    for turns in range(64, 6400, 64):
        concurrency.observe(stats(turns, 0.9, 64))
    assert concurrency.limit.value == 64


def test_every_device_of_an_engine_counts():
    """Fails if a server of tensor parallel 4 counts as one device."""
    bag, groups = MetricBag(), [SimpleNamespace(report=SimpleNamespace(tokens=80))]
    engines = SimpleNamespace(stats=lambda: {"a": None, "b": None})
    stages: Any = SimpleNamespace(engines=engines, engine_devices=4)
    note_speed(bag, groups, stages, seconds=2.0)  # type: ignore[arg-type]
    values = bag.result()
    assert values["perf/tokens_per_second"] == 40
    assert values["perf/tokens_per_second_per_device"] == 5
