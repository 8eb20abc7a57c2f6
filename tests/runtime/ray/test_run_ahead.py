"""Rollouts that run ahead of training over a real Ray, with a worker killed on the way."""

import asyncio
import importlib.util
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentrl.data import TrajectoryStore
from agentrl.disk.run_directory import RunDir
from agentrl.disk.stored_groups import stored_groups
from agentrl.metrics.sinks import read_metrics
from agentrl.runtime.records import OpenStages
from tests.runtime.one_pass import assert_weights_are_one_pass_over_the_store, stored_tasks
from tests.runtime.ray.ray_runs import drive, gone
from tests.runtime.tiny_project import write_larger_model, write_project

pytestmark = [pytest.mark.ray, pytest.mark.slow]

STEPS = 8
EMBEDDED = {"max_batch_size": 16, "kv_cache_gb": 0.1}
VLLM = {"engine": "vllm", "kv_cache_gb": 0.1, "max_batch_size": 16}


@pytest.mark.parametrize(
    "serving",
    [
        pytest.param(EMBEDDED, id="embedded"),
        pytest.param(VLLM, id="vllm", marks=pytest.mark.fleet),
    ],
)
async def test_a_worker_that_dies_costs_a_run_ahead_nothing_but_time(
    tmp_path: Path, serving: dict[str, Any]
) -> None:
    """Fails if a group is lost with its worker, trained twice or rolled out again under another
    seed, if a token names weights that it was not sampled from, or one that is too old is trained.
    """
    if "engine" in serving and importlib.util.find_spec("vllm") is None:
        pytest.skip("needs vLLM")
    path = write_project(
        tmp_path,
        train__steps=STEPS,
        serving=serving,
        env__args={"delay_s": 0.3},
        schedule={"staleness_threshold": 1.0, "partial_rollout": True},
        runtime={"kind": "ray", "rollout_workers": 2},
        eval={"datasets": {}},
    )
    if "engine" in serving:
        write_larger_model(tmp_path / "model")
    killed: list[int] = []

    async def watch(opened: OpenStages, run_dir: RunDir) -> None:
        store = TrajectoryStore(run_dir.trajectories)
        while 2 not in store.steps("train"):
            await asyncio.sleep(0.02)
        line = next(line for line in opened.actor_lines if line.startswith("worker 1"))
        killed.append(int(line.split()[3]))
        os.kill(killed[0], signal.SIGKILL)

    result = await drive(path, watch=watch)
    run = tmp_path / "runs" / "tiny"
    assert result.reason == "all steps done"
    assert killed
    assert gone(killed)
    lines = list(read_metrics(run / "metrics.jsonl"))
    assert sum(line.get("rollout/workers_lost") or 0 for line in lines) == 1
    assert sum(line.get("rollout/groups_run_again") or 0 for line in lines) >= 1
    # Eight steps of three groups are two epochs of twelve tasks.
    tasks = stored_tasks(run)
    assert sorted(tasks) == list(range(1, STEPS + 1))
    counted = Counter(task for step in tasks.values() for task in step)
    assert counted == {f"train-{index}": 2 for index in range(12)}
    ahead = assert_versions_are_those_that_may_be(run)
    assert ahead > 0, "no rollout ran ahead of its step"
    assert_weights_are_one_pass_over_the_store(path, run)


def assert_versions_are_those_that_may_be(run: Path) -> int:
    """Every sampled token names weights of its step or of one before; returns those before."""
    store, ahead = TrajectoryStore(run / "trajectories"), 0
    for step in store.steps("train"):
        for group in stored_groups(store, "train", step):
            for row in group.trajectories:
                versions = [
                    version
                    for version, sampled in zip(row.policy_versions, row.response_mask, strict=True)
                    if sampled
                ]
                assert versions == sorted(versions), "weights went back within a rollout"
                # One step ahead at the beginning, and one more for what a sync interrupts.
                assert all(step - 3 <= version <= step - 1 for version in versions), versions
                ahead += sum(version < step - 1 for version in versions)
    return ahead
