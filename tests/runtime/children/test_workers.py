"""Rollout workers in child processes: groups, deaths, cancellations, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentrl.config import parse_config
from agentrl.errors import ConfigError
from agentrl.runtime.children.packed_group import PackedGroup
from agentrl.runtime.children.workers import ChildWorkers
from agentrl.types import Termination
from tests.runtime.children import fake_run
from tests.runtime.children.fake_run import SAMPLING, TASK, TURNS, running_workers

LIMIT_S = 60.0


def gone(pids: list[int]) -> bool:
    """All of them have ended within a while."""
    deadline = time.monotonic() + LIMIT_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


async def one_lives_in(workers: ChildWorkers, dead: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(workers.pids) < 2 or dead in workers.pids:
            await asyncio.sleep(0.05)


async def test_groups_go_to_the_idle_worker_and_come_back_whole(tmp_path: Path) -> None:
    async with running_workers(tmp_path, workers=2, turn_s=0.05) as (opened, engines):
        pids = list(opened.workers.pids)
        groups = await asyncio.gather(
            *(
                opened.rollouts.run_group(
                    TASK, group_id=f"g{index}", n=2, sampling=SAMPLING, seed=index
                )
                for index in range(4)
            )
        )
        counted: list[int] = []
        async with asyncio.timeout(LIMIT_S):
            while sum(counted) < 4 * 2 * TURNS:
                await asyncio.sleep(0.1)
                stats = opened.news.counted(engines.client.stats())
                counted = [record.served.turns for record in stats.values()]
        turns = await opened.workers.ask_all("stats")
    for index, packed in enumerate(groups):
        group = packed.group
        assert group.group_id == packed.report.group_id == f"g{index}"
        assert [row.termination for row in group.trajectories] == [Termination.ENV_DONE] * 2
        assert packed.report.tokens == sum(sum(row.response_mask) for row in group.trajectories)
    # Fails if all groups go to one worker, or one engine is asked by nobody.
    each = [sum(s.served.turns for s in worker.values()) for worker in turns]
    assert each == [2 * 2 * TURNS] * 2
    assert sum(counted) == sum(each)
    assert all(counted)
    assert gone(pids)


async def test_a_group_of_a_killed_worker_is_run_again(tmp_path: Path) -> None:
    async with running_workers(tmp_path, workers=2, turn_s=0.3) as (opened, _):
        first = opened.workers.pids[0]
        running = asyncio.create_task(
            opened.rollouts.run_group(TASK, group_id="g", n=2, sampling=SAMPLING, seed=0)
        )
        await asyncio.sleep(0.4)  # in its second turn
        os.kill(first, signal.SIGKILL)
        packed = await running
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


async def test_a_cancelled_group_is_cancelled_in_its_worker_and_counted(tmp_path: Path) -> None:
    async with running_workers(tmp_path, workers=1, turn_s=0.2) as (opened, _):
        running = asyncio.create_task(
            opened.rollouts.run_group(TASK, group_id="g", n=2, sampling=SAMPLING, seed=0)
        )
        await asyncio.sleep(0.5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert opened.rollouts.counts().result()["waste/tokens/aborted"] > 0
        assert opened.workers.pids
        after = await opened.rollouts.run_group(
            TASK, group_id="after", n=1, sampling=SAMPLING, seed=0
        )
        assert after.report.rollouts[0].termination is Termination.ENV_DONE


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
