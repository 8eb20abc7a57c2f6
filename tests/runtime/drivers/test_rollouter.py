"""Who keeps groups in flight: begins, holds, drains, closes."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.data import TaskCursor
from agentrl.data.queue import TrajectoryQueue
from agentrl.data.staleness import BackPressure
from agentrl.data.tasks.cursor import Claim
from agentrl.runtime.drivers.concurrency import RolloutLimit
from agentrl.runtime.drivers.rollouter import CapacityUse, Rollouter
from agentrl.runtime.stages import GroupHandle, HeldGroup
from agentrl.types import TrajectoryGroup
from tests.runtime.driver_fakes import TASKS


class Stand:
    """A rollouter whose groups end when they are told to."""

    def __init__(self, *, limit: int, capacity: int) -> None:
        self.begun: list[int] = []
        self.cleaned: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}
        self.version = 0
        self.cursor = TaskCursor(TASKS.train, seed=0)
        self.pressure = BackPressure(limit)
        self.queue: TrajectoryQueue[GroupHandle] = TrajectoryQueue(capacity=limit)
        self.limit = RolloutLimit(capacity)
        self.rollouter = Rollouter(
            self.run_group,
            cursor=self.cursor,
            pressure=self.pressure,
            queue=self.queue,
            version=lambda: self.version,
            limit=self.limit,
            n=1,
            most=limit,
        )

    async def run_group(self, claim: Claim) -> GroupHandle:
        self.begun.append(claim.index)
        self.ends[claim.index] = asyncio.Event()
        try:
            await self.ends[claim.index].wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            self.cleaned.append(claim.index)
            raise
        group = TrajectoryGroup(group_id=str(claim.index), task_id=claim.task.id, trajectories=())
        return HeldGroup.of(group)

    async def end(self, *indices: int) -> None:
        for index in indices:
            self.ends[index].set()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_it_begins_up_to_the_capacity_and_the_back_pressure() -> None:
    stand = Stand(limit=3, capacity=2)
    stand.rollouter.fill()
    await settle()
    assert stand.begun == []  # it is not open
    stand.rollouter.open()
    await settle()
    assert stand.begun == [0, 1]
    await stand.end(1)
    # The place of the one that ended is filled, and then three were begun and none trained.
    assert stand.begun == [0, 1, 2]
    await stand.end(0, 2)
    assert stand.begun == [0, 1, 2]
    assert [entry.index for entry in stand.queue.entries] == [1, 0, 2]
    stand.pressure.train(2)
    stand.pressure.sync()
    stand.version = 2
    stand.rollouter.fill()
    await settle()
    assert stand.begun == [0, 1, 2, 3, 4]
    assert list(stand.rollouter.running) == [2, 2]
    await stand.rollouter.close()


async def test_a_finished_group_is_not_in_flight_when_the_trainer_looks() -> None:
    """Fails if it leaves only after it woke the trainer, who may then wait for it for ever."""
    stand = Stand(limit=1, capacity=1)
    stand.rollouter.open()
    await settle()
    seen: list[tuple[int, ...]] = []
    waiting = asyncio.create_task(
        stand.queue.take(
            lambda entries: (seen.append(tuple(stand.rollouter.running)), [0] if entries else None)[
                1
            ]
        )
    )
    await settle()
    await stand.end(0)
    await asyncio.wait_for(waiting, 120)
    assert seen == [(0,), ()]


async def test_holding_drains() -> None:
    stand = Stand(limit=4, capacity=2)
    stand.rollouter.open()
    await settle()
    stand.rollouter.hold()
    drained = asyncio.create_task(stand.rollouter.drained())
    await stand.end(0)
    assert stand.begun == [0, 1]
    assert not drained.done()
    await stand.end(1)
    assert drained.done()
    stand.rollouter.open()
    await settle()
    assert stand.begun == [0, 1, 2, 3]
    await stand.rollouter.close()


async def test_closing_cleans_up_and_gives_tasks_and_places_back() -> None:
    """Fails if what was cut is lost for the run, or still counts against the back-pressure."""
    stand = Stand(limit=2, capacity=2)
    stand.rollouter.open()
    await settle()
    await stand.rollouter.close()
    assert sorted(stand.cleaned) == [0, 1]
    assert stand.cursor.gaps == 2
    stand.rollouter.open()
    await settle()
    assert stand.begun == [0, 1, 0, 1]
    # Also those that were cancelled before their first instruction.
    await stand.rollouter.close()
    stand.rollouter.open()
    await stand.rollouter.close()
    assert stand.cursor.gaps == 2
    stand.rollouter.open()
    await settle()
    assert stand.begun == [0, 1] * 3
    await stand.rollouter.close()


async def test_an_error_stops_it_and_reaches_the_queue() -> None:
    stand = Stand(limit=4, capacity=1)

    async def broken(claim: Claim) -> GroupHandle:
        raise AssertionError("unequal lengths")

    stand.rollouter._run_group = broken
    stand.rollouter.open()
    await settle()
    assert not stand.rollouter.is_open
    with pytest.raises(AssertionError, match="unequal lengths"):
        await stand.queue.take(lambda entries: None)


def test_idle_capacity_is_weighed_by_time() -> None:
    use = CapacityUse()
    assert use.idle_share(10.0, 0, 4) == 0.0
    use.note(11.0, 4, 4)  # four of four for 1 s
    assert use.idle_share(14.0, 1, 4) == pytest.approx(1 - (4 + 3) / 16)  # one for 3 s
    assert use.idle_share(15.0, 0, 4) == 1.0
