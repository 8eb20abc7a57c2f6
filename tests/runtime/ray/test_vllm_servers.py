"""Real vLLM servers as Ray actors: weights reach them, and one that is killed comes back."""

import asyncio
import importlib.util
import os
import signal
from pathlib import Path

import pytest

from agentrl.data import TrajectoryStore
from agentrl.disk.run_directory import RunDir
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.runtime.records import OpenStages
from tests.runtime.ray.ray_runs import children, drive, gone, line_of
from tests.runtime.tiny_project import write_larger_model, write_project

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM"),
]


async def test_a_server_whose_actor_is_killed_comes_back_with_the_newest_weights(
    tmp_path: Path,
) -> None:
    """Fails if the run stops, if the server comes back with old weights, or leaves a process."""
    known = children(os.getpid())
    path = write_project(
        tmp_path,
        train__steps=100_000,
        serving={"engine": "vllm", "replicas": 2, "kv_cache_gb": 0.1, "max_batch_size": 16},
        runtime={"kind": "ray", "rollout_workers": 1},
        eval={"datasets": {}},
    )
    write_larger_model(tmp_path / "model")
    stop = StopSwitch()
    seen: list[int] = []

    async def watch(opened: OpenStages, run_dir: RunDir) -> None:
        try:
            store = TrajectoryStore(run_dir.trajectories)
            engines = opened.stages.engines
            while 2 not in store.steps("train"):
                await asyncio.sleep(0.05)
            assert {stats.state for stats in engines.stats().values()} == {"active"}
            place = next(line for line in opened.actor_lines if line.startswith("engine 0"))
            actor = int(place.split()[3])
            tree = children(actor)
            assert tree
            os.kill(actor, signal.SIGKILL)
            while engines.stats()["vllm-0"].state == "active":
                await asyncio.sleep(0.05)
            assert await asyncio.to_thread(gone, tree, limit_s=30.0), [line_of(p) for p in tree]
            turns = engines.stats()["vllm-0"].served.turns
            while engines.stats()["vllm-0"].served.turns <= turns:
                await asyncio.sleep(0.05)
            seen.append(engines.stats()["vllm-0"].version)
        finally:
            stop.request()

    with pytest.raises(Interrupted):
        await drive(path, watch=watch, stop=stop)
    assert seen
    assert seen[0] > 2
    store = TrajectoryStore(tmp_path / "runs" / "tiny" / "trajectories")
    for step in store.steps("train"):
        for row in store.read("train", step=step):
            sampled = [
                version
                for version, mask in zip(
                    row.trajectory.policy_versions, row.trajectory.response_mask, strict=True
                )
                if mask
            ]
            assert set(sampled) <= {step - 1}, "sampled with other weights than those it trains"
    left = [pid for pid in children(os.getpid(), "vllm", "ray") if pid not in known]
    assert await asyncio.to_thread(gone, left)
