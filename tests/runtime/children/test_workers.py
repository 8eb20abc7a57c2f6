"""Rollout workers in child processes: groups, deaths, cancellations, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentrl.config import parse_config
from agentrl.errors import ConfigError
from agentrl.runtime.assembly.engines import OpenEngines
from agentrl.runtime.children.open_workers import OpenWorkers
from agentrl.runtime.children.packed_group import PackedGroup
from agentrl.runtime.children.workers import ChildWorkers
from agentrl.types import Termination
from tests.runtime.children import fake_run
from tests.runtime.children.fake_run import SAMPLING, TASK, TURNS, running_workers

LIMIT_S = 120.0


def gone(pids: list[int]) -> bool:
    """All of them have ended within a while."""
    deadline = time.monotonic() + LIMIT_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[OpenWorkers, OpenEngines]]:
    """Two workers for all tests, since each takes seconds to start; none is left at the end."""
    folder = tmp_path_factory.mktemp("workers")
    async with running_workers(folder, workers=2, turn_s=0.2) as (opened, engines):
        yield opened, engines
        pids = list(opened.workers.pids)
    assert gone(pids)


async def turns_of(opened: OpenWorkers) -> list[int]:
    """Turns that each worker has asked the engines for."""
    stats = await opened.workers.ask_all("stats")
    return [sum(record.served.turns for record in worker.values()) for worker in stats]


def counted_turns(opened: OpenWorkers, engines: OpenEngines) -> list[int]:
    """Turns of each engine, as the run counts them."""
    stats = opened.news.counted(engines.client.stats())
    return [record.served.turns for record in stats.values()]


async def one_lives_in(workers: ChildWorkers, dead: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(workers.pids) < 2 or dead in workers.pids:
            await asyncio.sleep(0.05)


@pytest.mark.asyncio(loop_scope="module")
async def test_groups_go_to_the_idle_worker_and_come_back_whole(
    running: tuple[OpenWorkers, OpenEngines],
) -> None:
    opened, engines = running
    asked, seen = await turns_of(opened), counted_turns(opened, engines)
    groups = await asyncio.gather(
        *(
            opened.rollouts.run_group(
                TASK, group_id=f"g{index}", n=2, sampling=SAMPLING, seed=index
            )
            for index in range(4)
        )
    )
    async with asyncio.timeout(LIMIT_S):
        while sum(counted := counted_turns(opened, engines)) < sum(seen) + 4 * 2 * TURNS:
            await asyncio.sleep(0.1)
    for index, packed in enumerate(groups):
        group = packed.group
        assert group.group_id == packed.report.group_id == f"g{index}"
        assert [row.termination for row in group.trajectories] == [Termination.ENV_DONE] * 2
        assert packed.report.tokens == sum(sum(row.response_mask) for row in group.trajectories)
    # Fails if all groups go to one worker, or one engine is asked by nobody.
    each = [now - then for now, then in zip(await turns_of(opened), asked, strict=True)]
    assert each == [2 * 2 * TURNS] * 2
    assert sum(counted) == sum(seen) + sum(each)
    assert all(now > then for now, then in zip(counted, seen, strict=True))
    # Fails if a worker loads torch, seconds and memory that it has no use for.
    assert not [p for p in opened.workers.pids if "libtorch" in Path(f"/proc/{p}/maps").read_text()]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_cancelled_group_is_cancelled_in_its_worker_and_counted(
    running: tuple[OpenWorkers, OpenEngines],
) -> None:
    opened, _ = running
    group = asyncio.create_task(
        opened.rollouts.run_group(TASK, group_id="g", n=2, sampling=SAMPLING, seed=0)
    )
    async with asyncio.timeout(LIMIT_S):
        while not (seen := await opened.rollouts.in_flight(1)).count:
            await asyncio.sleep(0.05)
    assert (seen.count, seen.oldest[0].rollout_id, seen.oldest[0].task_id) == (2, "g/0", TASK.id)
    await asyncio.sleep(0.5)
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert opened.rollouts.counts().result()["waste/tokens/aborted"] > 0
    assert len(opened.workers.pids) == 2
    # One for each worker, so that also the one of the cancelled group serves.
    after = await asyncio.gather(
        *(
            opened.rollouts.run_group(TASK, group_id=f"after{i}", n=1, sampling=SAMPLING, seed=0)
            for i in range(2)
        )
    )
    for packed in after:
        assert packed.report.rollouts[0].termination is Termination.ENV_DONE


@pytest.mark.asyncio(loop_scope="module")
async def test_a_group_of_a_killed_worker_is_run_again(
    running: tuple[OpenWorkers, OpenEngines],
) -> None:
    opened, _ = running
    first = opened.workers.pids[0]
    groups = [
        asyncio.create_task(
            opened.rollouts.run_group(TASK, group_id=f"k{i}", n=2, sampling=SAMPLING, seed=i)
        )
        for i in range(2)
    ]
    async with asyncio.timeout(LIMIT_S):
        while (await opened.rollouts.in_flight(1)).count < 4:
            await asyncio.sleep(0.01)
    os.kill(first, signal.SIGKILL)
    for packed in await asyncio.gather(*groups):
        assert [row.termination for row in packed.group.trajectories] == [Termination.ENV_DONE] * 2
    counts = opened.rollouts.counts().result()
    assert counts["rollout/groups_run_again"] == 1
    assert counts["rollout/workers_lost"] == 1
    await one_lives_in(opened.workers, first)
    # The replacement serves, too.
    again = await asyncio.gather(
        *(
            opened.rollouts.run_group(TASK, group_id=f"h{i}", n=1, sampling=SAMPLING, seed=i)
            for i in range(2)
        )
    )
    assert all(isinstance(group, PackedGroup) for group in again)


def test_a_parent_that_is_killed_leaves_no_worker(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-m", fake_run.__name__, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert parent.stdout is not None
    try:
        line = next(line for line in parent.stdout if line.startswith("pids "))
        pids = [int(pid) for pid in line.split()[1:]]
        assert len(pids) == 2
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        parent.kill()
        parent.wait(LIMIT_S)
        assert gone(pids)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def test_children_cannot_ask_an_engine_in_the_process_of_the_trainer() -> None:
    with pytest.raises(ConfigError, match=r"serving\.engine: vllm or external"):
        parse_config(
            {
                "env": {"target": "x:Y"},
                "dataset": {"source": "x.jsonl"},
                "runtime": {"worker_processes": 2},
            }
        )
