"""Runs that shape rewards and filter groups: a kill anywhere changes nothing, no task is lost."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.config.plan import plan_run
from agentrl.config.schema import RewardSection
from agentrl.data import TaskCursor, TrajectoryStore
from agentrl.disk.run_directory import RunDir
from agentrl.disk.stored_groups import stored_groups
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.reward import RunningMoments
from agentrl.runtime.assembly.parts import TaskSets
from agentrl.runtime.assembly.step_batch import StepMaker
from agentrl.runtime.drivers.position import stream_index
from agentrl.runtime.progress import Progress
from agentrl.types import Task, Termination, TrajectoryGroup
from tests.runtime.driver_fakes import (
    TASKS,
    FakeWorker,
    Fuse,
    Killed,
    StreamingWorker,
    chain,
    drive,
    fake_config,
    places_to_kill,
    trained_tasks,
)
from tests.runtime.drivers.test_driver import digest_parts, killed_and_resumed, lines


def config_with(
    folder: Path,
    reward: dict[str, Any],
    *,
    schedule: dict[str, Any] | None = None,
    engine: str = "embedded",
    **train: Any,
) -> RunConfig:
    config = fake_config(folder, schedule=schedule, engine=engine, **train)
    # Std-normed groups would hide a constant factor, sums over groups would hide a constant.
    algorithm = config.algorithm.model_copy(update={"advantage_estimator": "reinforce"})
    return config.model_copy(update={"reward": RewardSection(**reward), "algorithm": algorithm})


NORMALIZE = {"normalize": True, "clip": (-1.0, 0.45), "overlong": 1}
FILTER = {"dynamic_filtering": (0.15, 0.45)}
"""Groups of the fake have mean scores 0.1 to 0.5, by their seed: two in five are filtered."""


def trained(config: RunConfig) -> str:
    """What the weights stand for after one pass over the store, from its beginning."""
    store = TrajectoryStore(Path(config.run.dir) / config.run.name / "trajectories")
    maker, digest = StepMaker(plan_run(config, Path()).schedule), ""
    for step in store.steps("train"):
        digest = chain(digest, maker.prepare(step, stored_groups(store, "train", step)).batch)
    return digest


def task_counts(config: RunConfig) -> Counter[str]:
    return Counter(task for tasks in trained_tasks(config).values() for task in tasks)


@pytest.mark.parametrize(
    ("reward", "schedule"),
    [
        ({**NORMALIZE, **FILTER}, {}),
        (FILTER, {"oversample": 1.5}),
    ],
    ids=["in order", "tail rounds"],
)
async def test_a_kill_at_every_place_changes_nothing(
    tmp_path: Path, reward: dict[str, Any], schedule: dict[str, Any]
) -> None:
    """Seen to fail: without statistics in the checkpoint, with statistics of shaped rewards stored
    in place of measured ones, with a replay that takes as many tasks as a step wants and not as
    many as it used (the dataset is said to have changed)."""
    fuse = Fuse()
    whole = config_with(tmp_path / "whole", reward, schedule=schedule, steps=4)
    _, trainer = await drive(whole, fuse=fuse)
    assert trainer.digest == trained(whole)
    for at in places_to_kill(fuse.places, 3, offset=1 if schedule else 0):
        config = config_with(tmp_path / str(at), reward, schedule=schedule, steps=4)
        with pytest.raises(Killed):
            await drive(config, fuse=Fuse(at))
        before = {step: digest_parts(config, step) for step in trained_tasks(config)}
        result, trainer = await drive(config)
        place = f"killed at {at}: {fuse.places[at - 1]}"
        assert result.steps == 4, place
        assert {step: digest_parts(config, step) for step in before} == before, place
        assert trainer.digest == trained(config), place
        if not schedule:
            # Whatever is killed, the same tasks are used in the same order.
            assert trained_tasks(config) == trained_tasks(whole), place
        assert_nothing_lost_or_doubled(config)


def assert_nothing_lost_or_doubled(config: RunConfig) -> None:
    """Every task once an epoch: no task is a whole epoch ahead of another that was passed over."""
    counts = task_counts(config)
    size, total = len(TASKS.train), sum(counts.values())
    assert set(counts.values()) <= {total // size, total // size + 1}, counts


async def test_a_filtered_step_asks_again_and_stores_all(tmp_path: Path) -> None:
    config = config_with(tmp_path, FILTER, steps=3)
    await drive(config)
    store = TrajectoryStore(tmp_path / "fake" / "trajectories")
    expected = TaskCursor(TASKS.train, seed=0)
    by_step = {line["step"]: line for line in lines(config)}
    asked = 0
    for step in (1, 2, 3):
        groups = stored_groups(store, "train", step)
        names = [group.group_id for group in groups]
        assert len(set(names)) == len(names)
        assert [g.task_id for g in groups] == [task.id for task in expected.take(len(groups))]
        kept = [g for g in groups if 0.15 < score_of(g) < 0.45]
        line = by_step[step]
        asked += line["rollout/filter_rounds"]
        assert line["rollout/groups_missing"] == 3 - len(kept)
        # Once there are enough, none is asked for: at most 3 groups teach.
        assert len(kept) == 3 or line["rollout/filter_rounds"] == 2
        assert line["rollout/started"] == 3 * len(groups)
        filtered = line.get("batch/groups_too_easy", 0) + line.get("batch/groups_too_hard", 0)
        assert filtered == len(groups) - len(kept)
        dropped = line.get("batch/rows_dropped/too_easy", 0)
        dropped += line.get("batch/rows_dropped/too_hard", 0)
        assert dropped == 3 * filtered
        # What is stored was measured, not shaped, and a filtered rollout was in no batch.
        advantages = {r.trajectory.group_id: r.advantage for r in store.read("train", step=step)}
        assert {name for name, value in advantages.items() if value is not None} == {
            group.group_id for group in kept
        }
    assert asked > 0


def score_of(group: TrajectoryGroup) -> float:
    rewards = [row.reward for row in group.trajectories if row.reward is not None]
    return sum(rewards) / len(rewards)


def nothing_kept(rounds: int) -> dict[str, Any]:
    """A filter that no group passes."""
    return {"dynamic_filtering": {"keep": (5.0, 6.0), "rounds": rounds}}


async def test_rounds_are_bounded_when_everything_is_filtered(tmp_path: Path) -> None:
    config = config_with(tmp_path, nothing_kept(rounds=2), steps=2)
    result, _ = await drive(config)
    assert result.steps == 2
    assert [len(tasks) for tasks in trained_tasks(config).values()] == [9, 9]
    line = {line["step"]: line for line in lines(config)}[1]
    assert (line["rollout/filter_rounds"], line["rollout/groups_missing"]) == (2, 3)
    assert line["train/steps_without_signal"] == 1
    assert line["batch/groups_too_hard"] == 9


async def test_no_round_where_none_is_wanted(tmp_path: Path) -> None:
    config = config_with(
        tmp_path, {"dynamic_filtering": {"keep": (0.15, 0.45), "rounds": 0}}, steps=4
    )
    await drive(config)
    assert [len(tasks) for tasks in trained_tasks(config).values()] == [3, 3, 3, 3]
    assert any(line.get("rollout/groups_missing") for line in lines(config))


async def test_surplus_fills_places_before_it_is_cancelled(tmp_path: Path) -> None:
    """Fails if a step cancels groups while the filter leaves places open (it did, and rolled out
    others in a further round), or takes more of them than it has places."""
    config = config_with(
        tmp_path,
        {"dynamic_filtering": {"keep": (0.15, 0.45), "rounds": 0}},
        schedule={"oversample": 2.0},
        steps=12,
    )
    worker = StreamingWorker(Fuse())
    await drive(config, worker=worker)
    store = TrajectoryStore(tmp_path / "fake" / "trajectories")
    taken = put_off = 0
    for step, line in enumerate(training_lines(config), 1):
        groups = stored_groups(store, "train", step)
        kept = sum(0.15 < score_of(group) < 0.45 for group in groups)
        assert kept <= 3
        assert line["rollout/groups_missing"] == 3 - kept
        assert not line["rollout/put_off"] or kept == 3
        assert line["rollout/surplus_taken"] == max(0, len(groups) - 3)
        taken += line["rollout/surplus_taken"]
        put_off += line["rollout/put_off"]
    assert min(taken, put_off) > 0
    begun = [name for name in worker.started if name.startswith("stream/")]
    assert 3 * len(begun) == 3 * sum(map(len, trained_tasks(config).values())) + put_off
    assert_nothing_lost_or_doubled(config)


def training_lines(config: RunConfig) -> list[dict[str, float]]:
    """Metrics of the steps, in their order."""
    return [line for line in lines(config) if "rollout/groups_missing" in line]


AHEAD: dict[str, dict[str, Any]] = {
    "trigger 2": {"schedule": {"trigger_parameter_sync_step": 2}, "engine": "vllm"},
    "one step off": {"schedule": {"staleness_threshold": 1.0}, "engine": "vllm"},
    "shared weights": {"schedule": {"staleness_threshold": 1.0, "partial_rollout": True}},
    "old groups dropped": {
        "schedule": {"staleness_threshold": 2.0, "partial_rollout": True, "max_version_lag": 1},
        "engine": "vllm",
    },
}
every_way_ahead = pytest.mark.parametrize("ahead", AHEAD)


def config_ahead(folder: Path, ahead: str, **train: Any) -> RunConfig:
    return config_with(folder, FILTER, **AHEAD[ahead], **train)


@every_way_ahead
async def test_a_run_ahead_replaces_what_the_filter_drops(tmp_path: Path, ahead: str) -> None:
    """Fails if a step trains what is left of its first groups (it did), if a replaced group keeps
    its slot (such a run never ends), or if groups begin that no step stores."""
    config = config_ahead(tmp_path, ahead, steps=7)
    worker = StreamingWorker(Fuse())
    result, trainer = await drive(config, worker=worker)
    assert (result.steps, trainer.digest) == (7, trained(config))
    store = TrajectoryStore(tmp_path / "fake" / "trajectories")
    by_step = {line["step"]: line for line in lines(config)}
    asked = 0
    for step in range(1, 8):
        line, groups = by_step[step], stored_groups(store, "train", step)
        too_old = sum(
            all(r.termination is Termination.STALE for r in g.trajectories) for g in groups
        )
        kept = sum(
            0.15 < score < 0.45 for group in groups if (score := fresh_score(group)) is not None
        )
        rounds = line["rollout/filter_rounds"]
        asked += rounds
        assert line["rollout/groups_missing"] == 3 - kept
        assert kept == 3 or rounds == 2
        # Every group is trained, or dropped under one reason.
        filtered = line.get("batch/groups_too_easy", 0) + line.get("batch/groups_too_hard", 0)
        assert len(groups) == kept + filtered + too_old
        assert line["rollout/started"] == 3 * len(groups) == line["batch/rows_started"]
        dropped = sum(value for name, value in line.items() if name.startswith(DROPPED))
        assert line["batch/rows_started"] == dropped + sum(line[name] for name in IN_BATCH)
        if "staleness/lag_max" in line and "max_version_lag" not in AHEAD[ahead]["schedule"]:
            assert line["staleness/lag_max"] <= 1
    assert asked > 0
    made = sum(map(len, trained_tasks(config).values()))
    assert len([name for name in worker.started if name.startswith("stream/")]) == made


DROPPED = "batch/rows_dropped/"
IN_BATCH = ("batch/rows_trained", "batch/rows_zero_advantage")


def fresh_score(group: TrajectoryGroup) -> float | None:
    """The mean score of what age leaves; None if that is nothing."""
    rewards = [row.reward for row in group.trajectories if row.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None


@every_way_ahead
async def test_rounds_of_a_run_ahead_are_bounded(tmp_path: Path, ahead: str) -> None:
    """Where all is filtered a step takes the rounds that it may take, and the run still ends."""
    config = config_with(tmp_path, nothing_kept(rounds=2), **AHEAD[ahead], steps=3)
    result, _ = await drive(config, worker=StreamingWorker(Fuse()))
    assert result.steps == 3
    by_step = {line["step"]: line for line in lines(config)}
    for step, tasks in trained_tasks(config).items():
        line = by_step[step]
        assert (line["rollout/filter_rounds"], line["rollout/groups_missing"]) == (2, 3)
        assert line["batch/groups_too_hard"] == 9
        assert len(tasks) == 9 + line["rollout/stale_dropped"] // 3


async def test_a_run_ahead_that_is_killed_anywhere_loses_no_task(tmp_path: Path) -> None:
    """Fails if the tasks of filtered groups are rolled out again, or count as not yet made."""
    whole = config_ahead(tmp_path / "whole", "shared weights", steps=4)
    fuse = Fuse()
    await drive(whole, fuse=fuse, worker=StreamingWorker(fuse))
    killed = 0
    for at in places_to_kill(fuse.places, 4):
        config = config_ahead(tmp_path / str(at), "shared weights", steps=4)
        if (resumed := await killed_and_resumed(config, Fuse(at))) is None:
            continue
        text, _, trainer = resumed
        killed += 1
        assert trainer.digest == trained(config), text
        groups = [
            stream_index(group)
            for step in trained_tasks(config)
            for group in stored_groups(
                TrajectoryStore(tmp_path / str(at) / "fake" / "trajectories"), "train", step
            )
        ]
        assert sorted(groups) == list(range(len(groups))), text
    assert killed > 5


async def test_the_statistics_of_a_checkpoint_are_those_of_its_step(tmp_path: Path) -> None:
    config = config_with(tmp_path, NORMALIZE, steps=4)
    await drive(config)
    store = TrajectoryStore(tmp_path / "fake" / "trajectories")
    maker = StepMaker(plan_run(config, Path()).schedule)
    for step in range(1, 4):
        maker.prepare(step, stored_groups(store, "train", step))
    saved = tmp_path / "fake" / "checkpoints" / "step-3" / "rewards.json"
    maker.save(tmp_path)
    assert RunningMoments.parse(saved.read_bytes()).count == 27
    assert json.loads(saved.read_text()) == json.loads((tmp_path / "rewards.json").read_text())


async def test_groups_of_further_rounds_have_seeds_of_their_own(tmp_path: Path) -> None:
    """Fails if each round draws its seeds anew (a task that comes again would give the same
    rollouts, filtered as before), or names its groups like those of the first."""
    seeds: dict[str, list[int]] = {}

    class Noting(FakeWorker):
        async def run_group(
            self, task: Task, *, group_id: str, n: int, sampling: Any, seed: int
        ) -> TrajectoryGroup:
            if group_id.startswith("step-1/"):
                seeds.setdefault(task.id, []).append(seed)
            await asyncio.sleep(0)
            return await super().run_group(
                task, group_id=group_id, n=n, sampling=sampling, seed=seed
            )

    config = config_with(tmp_path, nothing_kept(rounds=1), steps=1)
    one = TaskSets(train=TASKS.train[:1], evals=TASKS.evals)
    worker = Noting(Fuse())
    await drive(config, worker=worker, tasks=one)
    assert {task: len(set(of_task)) for task, of_task in seeds.items()} == {"t0": 6}
    names = [name for name in worker.started if name.startswith("step-1/")]
    assert len(set(names)) == len(names) == 6


class StopInRound(Progress):
    """Asks for an end as the `number`-th round of rollouts begins, evaluations aside."""

    def __init__(self, stop: StopSwitch, number: int) -> None:
        self.stop, self.left = stop, number

    def phase(self, name: str, total: int = 0) -> None:
        self.left -= name == "rollout"
        if name == "rollout" and self.left == 0:
            self.stop.request()


@pytest.mark.parametrize("number", [2, 3, 5])
async def test_a_signal_in_a_further_round_costs_that_step_alone(
    tmp_path: Path, number: int
) -> None:
    """Fails if the tasks of a step that is cut count as used."""
    whole = config_with(tmp_path / "whole", FILTER, steps=3)
    await drive(whole)
    config = config_with(tmp_path / "cut", FILTER, steps=3)
    stop = StopSwitch()
    with pytest.raises(Interrupted):
        await drive(config, stop=stop, progress=StopInRound(stop, number))
    _, trainer = await drive(config)
    assert trained_tasks(config) == trained_tasks(whole)
    assert trainer.digest == trained(config)


def test_a_run_directory_keeps_the_reward_section(tmp_path: Path) -> None:
    """Resumed with other penalties, replayed steps would be trained on other numbers."""
    from agentrl.errors import RunError

    config = fake_config(tmp_path)
    RunDir.create(config, base=tmp_path).close()
    (tmp_path / "fake" / "trajectories" / "train").mkdir(parents=True)
    (tmp_path / "fake" / "trajectories" / "train" / "step_000001.parquet").write_bytes(b"")
    directory, _, _ = RunDir.resume(tmp_path / "fake")
    try:
        with pytest.raises(RunError, match="reward"):
            directory.adopt(
                config.model_copy(update={"reward": RewardSection(normalize=True)}), base=tmp_path
            )
    finally:
        directory.close()
