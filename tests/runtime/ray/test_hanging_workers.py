"""Workers of a real Ray that wait, and one that hangs: only the second is replaced."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from agentrl.data import TrajectoryStore
from agentrl.disk.run_directory import RunDir
from agentrl.metrics.sinks import read_metrics
from agentrl.rollout.under_way.in_flight import InFlightReport
from agentrl.runtime.records import OpenStages
from tests.runtime.one_pass import assert_weights_are_one_pass_over_the_store, stored_tasks
from tests.runtime.ray.ray_runs import drive, gone
from tests.runtime.tiny_project import write_project

pytestmark = [pytest.mark.ray, pytest.mark.slow]

HANG_S = 10.0
QUEUEING = '''
"""Works in a sandbox for a while."""

from agentrl import AgentInstance, Observation, StepResult


class Queueing(AgentInstance):
    async def reset(self, task):
        self.sandbox = await self.context.open_sandbox()
        return Observation(content=str(task.prompt))

    async def step(self, action):
        result = await self.sandbox.exec(["sleep", "1.2"])
        return StepResult(rewards=float(len(action.text) % 3), done=True)
'''


async def test_a_queue_for_sandboxes_that_lasts_longer_than_any_limit_ends_nothing(
    tmp_path: Path,
) -> None:
    """Twelve rollouts share one sandbox, and the last one waits longer than a rollout, a beat or a
    `reset` may take. Fails if waiting counts as hanging, or costs a rollout anything."""
    path = write_project(
        tmp_path,
        train__steps=1,
        env={"target": "queueing.py:Queueing"},
        sandbox={"backend": "process", "pool": {"max_open": 1}},
        runtime={"kind": "ray", "rollout_workers": 1, "hang_timeout_s": HANG_S},
        eval={"datasets": {}},
    )
    (tmp_path / "queueing.py").write_text(QUEUEING)
    words = ("rollout.timeout_s=6", "rollout.env_timeout_s=4", "rollout.retries=0")
    result = await drive(path, *words)
    assert result.reason == "all steps done"
    rows = list(TrajectoryStore(tmp_path / "runs" / "tiny" / "trajectories").read("train", step=1))
    assert len(rows) == 12
    assert {row.trajectory.rule.reward_trusted for row in rows} == {True}
    # The duration of a rollout includes its wait.
    assert max(row.trajectory.duration_s for row in rows) > HANG_S, "no rollout had to wait"
    logged = read_metrics(tmp_path / "runs" / "tiny" / "metrics.jsonl")
    lines = [line for line in logged if "rollout/started" in line]
    assert lines
    assert not any(line.get("rollout/workers_lost") for line in lines)


async def test_a_worker_that_stands_still_is_replaced_and_its_groups_are_run_again(
    tmp_path: Path,
) -> None:
    """Fails if the run waits for the stopped process, ends with it, or trains other rollouts."""
    path = write_project(
        tmp_path,
        train__steps=3,
        env__args={"delay_s": 3.0},
        runtime={"kind": "ray", "rollout_workers": 2, "hang_timeout_s": HANG_S},
    )
    run = tmp_path / "runs" / "tiny"
    ended_after: list[float] = []
    in_flight: list[InFlightReport] = []

    async def watch(opened: OpenStages, run_dir: RunDir) -> None:
        while not any(line["step"] == 1 for line in read_metrics(run / "metrics.jsonl")):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)  # the groups of step 2 are in their `reset`
        assert opened.stages.in_flight is not None
        in_flight.append(await opened.stages.in_flight(5))
        line = next(line for line in opened.actor_lines if line.startswith("worker 1"))
        pid = int(line.split()[3])
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        assert await asyncio.to_thread(gone, [pid], limit_s=100.0)
        ended_after.append(time.monotonic() - began)

    async with asyncio.timeout(200):
        result = await drive(path, watch=watch)
    assert result.reason == "all steps done"
    assert ended_after, "the stopped process was not ended"
    # Fails if the state of a run on Ray names the rollouts of one worker alone.
    assert (in_flight[0].count, len(in_flight[0].oldest)) == (12, 5)
    assert in_flight[0].waits["environment"].count == 12
    assert ended_after[0] >= HANG_S / 2, "a process that answered late was ended"
    lines = list(read_metrics(run / "metrics.jsonl"))
    assert sum(line.get("rollout/workers_lost") or 0 for line in lines) == 1
    assert sum(line.get("rollout/groups_run_again") or 0 for line in lines) >= 1
    assert sorted(stored_tasks(run)) == list(range(1, 4))
    assert_weights_are_one_pass_over_the_store(path, run)
