"""Real runs with reward functions, penalties, normalisation and filter: killed, and over Ray."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.data import TrajectoryStore
from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.disk.rollback import logged_metrics
from agentrl.disk.stored_groups import stored_groups
from agentrl.metrics.sinks import read_metrics
from agentrl.runtime.assembly.step_batch import StepMaker
from tests.runtime.one_pass import assert_weights_are_one_pass_over_the_store, stored_tasks
from tests.runtime.tiny_project import Agentrl, agentrl, write_project

FUNCTIONS = '''
"""Scores of finished rollouts."""

import asyncio


def short(trajectory, task, most):
    return max(0.0, 1.0 - trajectory.num_action_tokens / most)


async def digits(trajectory, task, rows):
    await asyncio.sleep(0.001)
    return float(sum(c.isdigit() for row in rows for turn in row.turns for c in turn.text))
'''
REWARD = {
    "functions": {
        "short": {"target": "scores.py:short", "weight": 0.5, "args": {"most": 32}},
        "digits": {"target": "scores.py:digits", "weight": 0.25},
    },
    "env_weight": 2.0,
    "overlong": 40,
    "missing_eos_penalty": 0.125,
    "stop_properly_penalty_coef": 0.5,
    "clip": [-0.5, 1.5],
    "normalize": True,
    # About a third of the groups of a random model have a mean score outside.
    "dynamic_filtering": {"keep": [0.2, 0.5], "rounds": 1},
}


def write(folder: Path, **changes: object) -> Path:
    path = write_project(
        folder,
        reward=REWARD,
        algorithm={"preset": "reinforce++-baseline"},
        env__args={"delay_s": 0.02},
        **{"train__steps": 6, **changes},
    )
    (folder / "scores.py").write_text(FUNCTIONS)
    return path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose uninterrupted run is in `runs/tiny`."""
    path = write(tmp_path_factory.mktemp("rewards"))
    status, text = agentrl(path.parent / "out.txt", "train", path)
    assert status == 0, text
    return path


def tasks_of(run: Path) -> list[list[str]]:
    return list(stored_tasks(run).values())


def assert_all_follows_from_the_store(path: Path, run: Path) -> None:
    """One pass over what is stored gives the very bits of the weights and of the statistics."""
    maker = StepMaker(plan_run(load_config(path), path.parent).schedule)
    checkpoint = assert_weights_are_one_pass_over_the_store(
        path, run, lambda _, step, groups: maker.prepare(step, groups).batch
    )
    maker.save(path.parent)
    assert (path.parent / "rewards.json").read_text() == (
        checkpoint.path / "rewards.json"
    ).read_text()


def test_a_finished_run(project: Path) -> None:
    run = project.parent / "runs" / "tiny"
    assert_all_follows_from_the_store(project, run)
    logged = logged_metrics(run / "metrics.jsonl")
    for name in (
        "rewards/env/mean", "rewards/short/mean", "rewards/digits/mean",
        "reward_shaping/overlong/mean", "reward_shaping/missing_eos/share",
        "reward_shaping/stop_properly/share", "reward_shaping/running_std",
        "batch/groups_filtered_share", "rollout/filter_rounds",
    ):  # fmt: skip
        assert name in logged[6], name
    sizes = [len(tasks) for tasks in tasks_of(run)]
    assert max(sizes) > 3
    # What is stored was measured: functions included, penalties not.
    store = TrajectoryStore(run / "trajectories")
    for stored in store.read("train", step=6):
        row = stored.trajectory
        parts = row.reward_parts
        assert row.reward == pytest.approx(
            2.0 * parts["env"] + 0.5 * parts["short"] + 0.25 * parts["digits"]
        )


def test_kill_9_at_random_moments(project: Path, tmp_path: Path) -> None:
    """Seen to fail without the statistics in the checkpoint (weights and statistics differ)."""
    shutil.copytree(project.parent / "model", tmp_path / "model")
    path = write(tmp_path)
    run = tmp_path / "runs" / "tiny"
    moments = random.Random(0)
    kept: dict[str, int] = {}
    for attempt in range(4):
        process = Agentrl(tmp_path / f"out{attempt}.txt", "train", path, "--resume")
        process.wait_for("model ")
        time.sleep(moments.uniform(0.0, 1.5))
        process.send(signal.SIGKILL)
        assert process.wait() in (0, -signal.SIGKILL), process.text()
        for file in (run / "trajectories" / "train").glob("*.parquet"):
            made = file.stat().st_mtime_ns
            assert kept.setdefault(file.name, made) == made, f"{file} was made twice"
    status, text = agentrl(tmp_path / "out.txt", "train", run, "--resume")
    assert status == 0, text
    assert_all_follows_from_the_store(path, run)
    # Sampling is seeded and so is the filter: the same groups, in as many rounds.
    assert tasks_of(run) == tasks_of(project.parent / "runs" / "tiny")


def test_a_run_ahead_refills_and_is_killed(project: Path, tmp_path: Path) -> None:
    """Fails if a run that works ahead trains what the filter leaves of its first groups."""
    shutil.copytree(project.parent / "model", tmp_path / "model")
    path = write(tmp_path, schedule={"staleness_threshold": 1.0, "partial_rollout": True})
    run = tmp_path / "runs" / "tiny"
    process = Agentrl(tmp_path / "first.txt", "train", path)
    process.wait_for("step 3")
    process.send(signal.SIGKILL)
    assert process.wait() in (0, -signal.SIGKILL), process.text()
    status, text = agentrl(tmp_path / "out.txt", "train", run, "--resume")
    assert status == 0, text
    assert_all_follows_from_the_store(path, run)
    store, rounds = TrajectoryStore(run / "trajectories"), 0
    for line in read_metrics(run / "metrics.jsonl"):
        if "rollout/filter_rounds" not in line:
            continue
        groups = stored_groups(store, "train", int(line["step"]))
        rounds += line["rollout/filter_rounds"]
        filtered = line.get("batch/groups_too_easy", 0) + line.get("batch/groups_too_hard", 0)
        assert len(groups) - filtered == 3 - line["rollout/groups_missing"]
        assert line["rollout/filter_rounds"] == 1 or not filtered
    assert rounds > 0


@pytest.mark.ray
@pytest.mark.slow
def test_two_ranks_shape_as_one_process_does(project: Path, tmp_path: Path) -> None:
    """Fails if a rank has statistics of its own, or shapes what is shaped."""
    from tests.runtime.ray.ray_runs import drive

    shutil.copytree(project.parent / "model", tmp_path / "model")
    path = write(tmp_path, train__steps=3)
    asyncio.run(drive(path, "runtime.trainer_ranks=2", "runtime.rollout_workers=2"))
    run = tmp_path / "runs" / "tiny"
    assert_same_first_step(run, project.parent / "runs" / "tiny")
    config = load_config(path)
    store, maker = (
        TrajectoryStore(run / "trajectories"),
        StepMaker(plan_run(config, tmp_path).schedule),
    )
    for step in store.steps("train"):
        maker.prepare(step, stored_groups(store, "train", step))
    maker.save(tmp_path)
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    assert (checkpoint.path / "rewards.json").read_text() == (tmp_path / "rewards.json").read_text()


def assert_same_first_step(run: Path, other: Path) -> None:
    """Rewards, tasks and advantages before anything was trained."""
    steps = [
        [
            (s.trajectory.rollout_id, s.trajectory.reward, s.advantage)
            for s in TrajectoryStore(folder / "trajectories").read("train", step=1)
        ]
        for folder in (run, other)
    ]
    assert steps[0] == steps[1]
