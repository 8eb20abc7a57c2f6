"""Whole runs over a real Ray: the same results as in one process, and what happens to the dead."""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from agentrl.data import TrajectoryStore
from agentrl.data.store.step_files import stored_steps
from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.disk.run_directory import RunDir
from agentrl.disk.stored_groups import stored_groups
from agentrl.metrics.sinks import read_metrics
from agentrl.runtime.rank_restarts import RankLost
from agentrl.runtime.ray.stages import RemoteGroup
from agentrl.runtime.records import OpenStages
from agentrl.types import SamplingParams, Task
from tests.runtime.one_pass import assert_weights_are_one_pass_over_the_store, stored_tasks
from tests.runtime.ray.ray_runs import children, drive, gone, line_of, pid_of, wait_until
from tests.runtime.tiny_project import Agentrl, agentrl, write_project

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RAY = {"rollout_workers": 2, "trainer_ranks": 1}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a run in one process in `runs/local`."""
    folder = tmp_path_factory.mktemp("ray")
    path = write_project(folder, train__steps=3)
    status, text = agentrl(folder / "out.txt", "train", path, "run.name=local")
    assert status == 0, text
    return path


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Every test must leave no process and no folder of Ray behind."""
    before = set(Path(tempfile.gettempdir()).glob("agentrl-ray-*"))
    known = children(os.getpid())
    yield
    assert set(Path(tempfile.gettempdir()).glob("agentrl-ray-*")) <= before
    left = [pid for pid in children(os.getpid(), "ray") if pid not in known]
    assert gone(left), [line_of(pid) for pid in left]


def seeds_of(run: Path) -> list[tuple[str, str, str]]:
    """What was asked for, in order: group, task and first prompt of each rollout."""
    store = TrajectoryStore(run / "trajectories")
    return [
        (group.group_id, row.rollout_id, str(row.prompt_ids))
        for step in store.steps("train")
        for group in stored_groups(store, "train", step)
        for row in group.trajectories
    ]


def files(store: TrajectoryStore, step: int, kind: str) -> list[Path]:
    """The files of a step, in the order of its groups."""
    return stored_steps(store.path(step, kind).parent.glob("*.parquet"))[step]


def written(store: TrajectoryStore, step: int) -> list[int]:
    """When each file of a step was written."""
    return [path.stat().st_mtime_ns for path in files(store, step, "train")]


def maps_of(pid: int) -> str:
    """Files that a process has mapped into its memory."""
    return Path(f"/proc/{pid}/maps").read_text()


def tokens_of(run: Path) -> list[tuple[int, ...]]:
    store = TrajectoryStore(run / "trajectories")
    groups = stored_groups(store, "train", 1)
    return [row.response_ids for group in groups for row in group.trajectories]


def batch_metrics(run: Path) -> dict[str, float]:
    """Metrics of the first step that no time, packing or weight is in."""
    line = next(
        line for line in read_metrics(run / "metrics.jsonl") if "batch/rows_trained" in line
    )
    packing = {"batch/micro_batches", "batch/tokens", "batch/tokens_measured"}
    names = ("batch/", "waste/tokens/", "reward", "completions/", "rollout/termination/")
    return {
        name: value
        for name, value in line.items()
        if name.startswith(names) and name not in packing
    }


async def test_two_ranks_and_two_workers_do_what_one_process_does(project: Path) -> None:
    """Fails if a rank trains a share twice or not at all, if its share is not that of the whole
    batch, if seeds depend on the worker, if the processes of the run come after whatever else the
    machine does, or if a rollout worker loads torch, which it has no use for."""
    import torch
    from transformers import AutoModelForCausalLM

    niceness: set[int] = set()

    async def watch(opened: OpenStages, run_dir: RunDir) -> None:
        assert len(opened.actor_lines) == 4
        places = {line.split(":")[0]: int(line.split()[3]) for line in opened.actor_lines}
        pids = [0, *places.values()]
        with_torch.extend(n for n, pid in places.items() if "libtorch" in maps_of(pid))
        niceness.update(os.getpriority(os.PRIO_PROCESS, pid) for pid in pids)
        assert opened.sandbox.startswith("nothing")
        models.append(opened.model)

    models: list[str] = []
    with_torch: list[str] = []
    run = project.parent / "runs" / "two"
    result = await drive(project, "run.name=two", "runtime.trainer_ranks=2", watch=watch)
    assert result.reason == "all steps done"
    assert len(niceness) == 1, niceness
    assert with_torch == ["rank 0", "rank 1"]
    assert (run / "tokenizer.json").exists()
    assert "on 2 ranks, each prepares its share; " in models[0]
    local = project.parent / "runs" / "local"
    # Each rank has stored its part of every step, of training and of evaluations.
    store = TrajectoryStore(run / "trajectories")
    assert all(len(files(store, n, kind)) == 2 for kind in store.kinds() for n in store.steps(kind))
    assert stored_tasks(run) == stored_tasks(local)
    assert seeds_of(run) == seeds_of(local)
    # Before anything was trained the weights, and with them the tokens, are the same.
    assert tokens_of(run) == tokens_of(local)
    assert batch_metrics(run) == pytest.approx(batch_metrics(local), rel=1e-12)
    ours, theirs = (latest_checkpoint(folder / "checkpoints") for folder in (run, local))
    assert ours is not None
    assert theirs is not None
    saved = [
        AutoModelForCausalLM.from_pretrained(c.path, dtype=torch.float32) for c in (ours, theirs)
    ]
    for (name, a), (_, b) in zip(*(model.named_parameters() for model in saved), strict=True):
        assert torch.allclose(a, b, atol=1e-6), name


async def machines_that_hold_a_large_group(opened: OpenStages) -> int:
    """Nobody's shared memory holds a group that travelled inside of the answer."""
    from ray.experimental import get_object_locations

    handle = await opened.stages.rollouts.run_group(
        Task(id="large", prompt="say much"),
        group_id="large",
        n=48,
        sampling=SamplingParams(
            temperature=1.0, max_tokens=8, stop_token_ids=opened.stages.stop_token_ids
        ),
        seed=1,
    )
    assert len(handle.report.rollouts) == 48
    ref = cast(RemoteGroup, handle).ref
    # A machine reports late that it holds an object; one inside of an answer has no place.
    deadline = time.monotonic() + 120
    while not (places := get_object_locations([ref])[ref]["node_ids"]):
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.05)
    return len(places)


async def test_a_worker_and_a_rank_are_killed_in_one_run(project: Path) -> None:
    """A worker costs nothing but time; a rank ends its stages, and the run can be resumed.

    Fails if the groups of the worker are lost or counted twice, if nobody takes its place, if the
    driver waits for the dead rank, or if `--resume` makes a stored step again. Bit-equal weights:
    the groups that were run again are those that were trained.
    """
    killed: dict[int, float] = {}
    held: list[int] = []

    async def kill(opened: OpenStages, place: str) -> None:
        line = next(line for line in opened.actor_lines if line.startswith(place))
        pid = int(line.split()[3])
        killed[pid] = time.monotonic()
        os.kill(pid, signal.SIGKILL)

    async def watch(opened: OpenStages, run_dir: RunDir) -> None:
        held.append(await machines_that_hold_a_large_group(opened))
        store = TrajectoryStore(run_dir.trajectories)
        while 1 not in store.steps("train"):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        await kill(opened, "worker 1")
        log = run_dir.path / "logs" / "worker-1.log"
        while log.read_text().count(": process ") < 2 or 3 not in store.steps("train"):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        await kill(opened, "rank 0")

    run = project.parent / "runs" / "killed"
    overrides = ("run.name=killed", "env.args={delay_s: 0.3}")
    with pytest.raises(RankLost, match="trainer rank 0 is gone"):
        await drive(project, *overrides, "train.steps=100", watch=watch)
    assert len(killed) == 2
    # A rollout waits 60 s for an engine to come back.
    assert time.monotonic() - max(killed.values()) < 60
    assert held == [1], "the group came to the driver inside of the answer"
    assert gone(list(killed))
    store = TrajectoryStore(run / "trajectories")
    made = {step: written(store, step) for step in store.steps("train")}
    steps = max(made) + 2
    assert sorted(made) == list(range(1, steps - 1))
    await drive(project, *overrides, f"train.steps={steps}")
    assert made == {step: written(store, step) for step in made}
    assert sorted(stored_tasks(run)) == list(range(1, steps + 1))
    lines = list(read_metrics(run / "metrics.jsonl"))
    assert sum(line.get("rollout/workers_lost") or 0 for line in lines) == 1
    assert sum(line.get("rollout/groups_run_again") or 0 for line in lines) >= 1
    assert [line["rollout/started"] for line in lines if "rollout/started" in line] == [12] * steps
    assert_weights_are_one_pass_over_the_store(project, run)


def test_nothing_outlives_a_killed_driver_and_a_signal_ends_it_cleanly(project: Path) -> None:
    """Fails if an actor, a process or the folder of Ray stays, or if Ray takes SIGTERM itself."""
    words = ("runtime=ray", "run.name=driver", "train.steps=200", "env.args={delay_s: 0.1}")
    folders = set(Path(tempfile.gettempdir()).glob("agentrl-ray-*"))
    process = Agentrl(project.parent / "driver.txt", "train", project, *words)
    process.wait_for("step 1/", 120)
    below = children(pid_of(process))
    assert len(below) > 5
    process.send(signal.SIGKILL)
    process.wait()
    assert gone(below), [line_of(pid) for pid in below]
    wait_until(lambda: set(Path(tempfile.gettempdir()).glob("agentrl-ray-*")) <= folders)
    run = project.parent / "runs" / "driver"
    process = Agentrl(project.parent / "again.txt", "train", run, "--resume")
    process.wait_for("step 3/", 120)
    below = children(pid_of(process))
    process.send(signal.SIGTERM)
    assert process.wait(120) == 143, process.text()
    assert f"agentrl train {run} --resume" in " ".join(process.text().split())
    assert "Traceback" not in process.text()
    assert gone(below), [line_of(pid) for pid in below]
