"""Oversampling: the first groups of a round are trained, the others in rounds of their own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import RunConfig
from agentrl.data import TaskCursor
from agentrl.data.tasks.cursor import Claim
from agentrl.runtime.drivers.concurrency import RolloutLimit
from agentrl.runtime.drivers.position import stream_index
from agentrl.runtime.drivers.tail_batching import plan_round, run_first
from agentrl.runtime.stages import GroupHandle, HeldGroup
from agentrl.types import Task, TrajectoryGroup
from tests.runtime.driver_fakes import (
    TASKS,
    Fuse,
    StreamingWorker,
    drive,
    fake_config,
    places_to_kill,
    trained_tasks,
)
from tests.runtime.drivers.test_asynchronous import stored
from tests.runtime.drivers.test_driver import digest_of_store, killed_and_resumed, lines


def config_of(tmp_path: Path, *, steps: int) -> RunConfig:
    return fake_config(tmp_path, schedule={"oversample": 1.5}, steps=steps)


@given(
    tasks=st.integers(1, 40),
    size=st.integers(1, 8),
    oversample=st.sampled_from([1.01, 1.5, 2.0, 4.0]),
    data=st.data(),
)
def test_every_task_once_an_epoch(
    tasks: int, size: int, oversample: float, data: st.DataObject
) -> None:
    """Whoever is cut, after every step no task was trained two times more than another.

    Fails if new tasks of the next epoch are begun beside what was put off in this one, and if
    rounds of their own wait until they are full at the end of an epoch."""
    cursor = TaskCursor([Task(id=str(n), prompt="?") for n in range(tasks)], seed=0)
    trained: Counter[str] = Counter({str(n): 0 for n in range(tasks)})
    for _ in range(30):
        plan = plan_round(
            size=size, oversample=oversample, deferred=cursor.gaps, left=cursor.left_in_epoch
        )
        claims = [cursor.claim_new() if plan.new else cursor.claim() for _ in range(plan.groups)]
        first = data.draw(st.permutations(claims))[:size]
        assert len(first) == size
        for claim in claims:
            if claim not in first:
                cursor.release(claim.index)
        cursor.commit(claim.index for claim in first)
        trained.update(claim.task.id for claim in first)
        if size <= tasks:
            assert max(trained.values()) - min(trained.values()) <= 1


def runner(
    ends: dict[int, float], cut: list[int] | None = None
) -> Callable[[Claim], Awaitable[GroupHandle]]:
    async def run(claim: Claim) -> GroupHandle:
        try:
            await asyncio.sleep(ends[claim.index])
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            if cut is not None:
                cut.append(claim.index)
            raise
        return HeldGroup.of(
            TrajectoryGroup(group_id=str(claim.index), task_id=claim.task.id, trajectories=())
        )

    return run


def claims_of(n: int) -> list[Claim]:
    return [Claim(index=index, task=TASKS.train[index]) for index in range(n)]


async def test_the_first_are_kept_and_the_others_have_cleaned_up() -> None:
    """Fails if cancelled groups are not awaited, or if the kept ones come as they ended."""
    cut: list[int] = []
    ends = {0: 0.02, 1: 30.0, 2: 0.0, 3: 30.0}
    finished, _ = await run_first(
        runner(ends, cut), claims_of(4), wanted=2, n=1, limit=RolloutLimit(9)
    )
    assert [item.claim.index for item in finished] == [0, 2]
    assert sorted(cut) == [1, 3]


async def test_exactly_as_many_as_wanted_though_more_end_together() -> None:
    finished, surplus = await run_first(
        runner(dict.fromkeys(range(5), 0.0)), claims_of(5), wanted=3, n=1, limit=RolloutLimit(9)
    )
    assert len(finished) == 3
    # Fails if what ended and is not wanted is forgotten: it was paid for.
    assert {item.claim.index for item in finished + surplus} == set(range(5))


async def test_others_take_the_places_of_groups_that_teach_nothing() -> None:
    """Fails if groups that the filter drops take a place, or are no longer returned."""
    cut: list[int] = []
    ends = {0: 30.0, 1: 0.0, 2: 0.02, 3: 0.04, 4: 30.0}
    finished, surplus = await run_first(
        runner(ends, cut),
        claims_of(5),
        wanted=2,
        fills=lambda group: group.report.group_id != "1",
        n=1,
        limit=RolloutLimit(9),
    )
    assert [item.claim.index for item in finished] == [1, 2, 3]
    assert (surplus, sorted(cut)) == ([], [0, 4])


async def test_a_round_of_groups_that_teach_nothing_ends() -> None:
    finished, surplus = await run_first(
        runner({0: 0.02, 1: 0.0, 2: 0.0}),
        claims_of(3),
        wanted=2,
        fills=lambda group: group.report.group_id == "0",
        n=1,
        limit=RolloutLimit(9),
    )
    assert ([item.claim.index for item in finished], surplus) == ([0, 1, 2], [])


async def test_what_does_not_fit_waits() -> None:
    ends = {0: 0.03, 1: 0.0, 2: 0.0}
    # Fails (0 is among the first two) if the gate is not there, or lets one in too few.
    finished, _ = await run_first(runner(ends), claims_of(3), wanted=2, n=1, limit=RolloutLimit(2))
    assert [item.claim.index for item in finished] == [1, 2]
    finished, _ = await run_first(runner(ends), claims_of(3), wanted=2, n=1, limit=RolloutLimit(1))
    assert [item.claim.index for item in finished] == [0, 1]


async def test_a_worker_that_raises_is_shown_bare() -> None:
    cut: list[int] = []
    slow = runner({0: 30.0}, cut)

    async def run(claim: Claim) -> GroupHandle:
        if claim.index:
            raise AssertionError("unequal lengths")
        return await slow(claim)

    with pytest.raises(AssertionError, match="unequal lengths"):
        await run_first(run, claims_of(2), wanted=1, n=1, limit=RolloutLimit(2))
    assert cut == [0]


async def test_a_run_is_on_policy_and_takes_every_task_once_an_epoch(tmp_path: Path) -> None:
    config = config_of(tmp_path, steps=12)
    worker = StreamingWorker(Fuse())
    result, trainer = await drive(config, worker=worker)
    assert (result.steps, trainer.digest) == (12, digest_of_store(config))
    counts: Counter[str] = Counter({task.id: 0 for task in TASKS.train})
    for step, groups in stored(config).items():
        assert len(groups) == 3
        for group in groups:
            assert {v for row in group.trajectories for v in row.policy_versions} == {step - 1}
        counts.update(trained_tasks(config)[step])
        assert max(counts.values()) - min(counts.values()) <= 1
    put_off = sum(line.get("rollout/put_off", 0) for line in lines(config))
    begun = [name for name in worker.started if name.startswith("stream/")]
    # What was begun is either trained or counted.
    assert len(begun) * 3 == 12 * 9 + put_off
    assert put_off > 0


async def test_a_kill_at_every_place_loses_nothing(tmp_path: Path) -> None:
    fuse = Fuse()
    await drive(config_of(tmp_path / "w", steps=4), fuse=fuse, worker=StreamingWorker(fuse))
    for at in places_to_kill(fuse.places, 4):
        config = config_of(tmp_path / str(at), steps=4)
        if (resumed := await killed_and_resumed(config, Fuse(at))) is None:
            continue
        place, _, trainer = resumed
        assert trainer.digest == digest_of_store(config), place
        indices = [stream_index(g) for groups in stored(config).values() for g in groups]
        assert len(set(indices)) == len(indices), place
        counts = Counter({task.id: 0 for task in TASKS.train})
        counts.update(task for tasks in trained_tasks(config).values() for task in tasks)
        assert max(counts.values()) - min(counts.values()) <= 1, place
