"""An outage of all engines ends a run with an error, and costs it no task."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.errors import Outage
from agentrl.metrics.sinks import read_metrics
from agentrl.runtime.health.outage_retries import TRIES
from agentrl.serving.records import EngineState, EngineStats, Routed, Served
from agentrl.types import SamplingParams, Task, Termination, TrajectoryGroup
from tests.runtime import driver_fakes
from tests.runtime.driver_fakes import FakeWorker, Fuse, drive, fake_config, trained_tasks

SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "synchronous": {},
    "asynchronous": {"staleness_threshold": 1.0},
    "tail batching": {"oversample": 1.5},
}


class Outages(FakeWorker):
    """Finds no engine from a training group on, for some of them; the last rollout notices it."""

    def __init__(self, *, after: int, calls: int) -> None:
        super().__init__(Fuse())
        self.without = range(after, after + calls)
        self.asked: list[tuple[str, int]] = []

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> TrajectoryGroup:
        trains = not group_id.startswith("eval")
        out = trains and len(self.asked) in self.without
        if trains:
            self.asked.append((group_id, seed))
        self.end = lambda index: (
            Termination.NO_ENGINE if out and index == n - 1 else Termination.ENV_DONE
        )
        return await super().run_group(task, group_id=group_id, n=n, sampling=sampling, seed=seed)


def engines_are(monkeypatch: pytest.MonkeyPatch, state: EngineState) -> None:
    """Set the state of the one engine of every run."""
    stats = EngineStats(
        name="e", state=state, why="", version=0, in_flight=0, routed=Routed(), served=Served()
    )
    monkeypatch.setattr(driver_fakes.FakeClient, "stats", lambda self: {"e": stats})


def config_of(tmp_path: Path, schedule: str) -> RunConfig:
    return fake_config(tmp_path, schedule=SCHEDULES[schedule], engine="vllm")


def counted(tasks: Mapping[int, list[str]]) -> Counter[str]:
    return Counter(task for step in tasks.values() for task in step)


@pytest.mark.parametrize("schedule", SCHEDULES)
async def test_a_run_without_engines_ends_and_its_resume_begins_with_the_tasks_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    """Fails if a group that met no engine is stored: its step would count, and its task as done."""
    engines_are(monkeypatch, EngineState.QUARANTINED)
    whole = config_of(tmp_path / "whole", schedule)
    await drive(whole)
    broken = config_of(tmp_path / "broken", schedule)
    worker = Outages(after=13, calls=1000)
    with pytest.raises(Outage, match=r"after step \d: the run has no engine: .*--resume"):
        await drive(broken, worker=worker)
    done = trained_tasks(broken)
    assert 0 < len(done) < 7
    saved = latest_checkpoint(tmp_path / "broken" / "fake" / "checkpoints")
    assert saved is not None
    assert saved.state.step == len(done), "the last finished step is saved"

    result, _ = await drive(broken)
    assert result.steps == 7
    tasks, expected = trained_tasks(broken), trained_tasks(whole)
    assert counted(tasks) == counted(expected)
    if schedule == "synchronous":
        assert tasks == expected
    lines = list(read_metrics(tmp_path / "broken" / "fake" / "metrics.jsonl"))
    assert not any(line.get("rollout/termination/no_engine") for line in lines)
    assert not any(line.get("rollout/dropped") for line in lines)


@pytest.mark.parametrize("schedule", SCHEDULES)
async def test_a_group_that_met_an_outage_is_run_again_with_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    """Fails if engines that are back find other tasks or draws than they would have without the
    outage, or if what it cost is in no ledger."""
    engines_are(monkeypatch, EngineState.ACTIVE)
    config = config_of(tmp_path, schedule)
    worker = Outages(after=7, calls=3)
    result, _ = await drive(config, worker=worker)
    assert result.steps == 7
    again = [asked for asked in worker.asked if worker.asked.count(asked) > 1]
    assert again
    assert len({group for group, _ in worker.asked}) == len(set(worker.asked))
    whole = config_of(tmp_path / "whole", schedule)
    await drive(whole)
    tasks, expected = trained_tasks(config), trained_tasks(whole)
    assert counted(tasks) == counted(expected)
    lines = list(read_metrics(tmp_path / "fake" / "metrics.jsonl"))
    assert 1 <= sum(line.get("rollout/groups_run_again", 0) for line in lines) <= 3
    assert sum(line.get("waste/tokens/aborted", 0) for line in lines) > 0


async def test_engines_that_come_and_go_end_a_run_after_some_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if one group is begun again for ever."""
    engines_are(monkeypatch, EngineState.ACTIVE)
    worker = Outages(after=0, calls=10_000)
    async with asyncio.timeout(60):
        with pytest.raises(Outage, match="before training"):
            await drive(fake_config(tmp_path), worker=worker)
    assert max(worker.asked.count(asked) for asked in set(worker.asked)) == TRIES
    assert trained_tasks(fake_config(tmp_path)) == {}
