"""The asynchronous driver in all its modes: bounds, counts, evaluation, signals, kills anywhere."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.data import TaskCursor, TrajectoryStore
from agentrl.disk.checkpoint import list_checkpoints
from agentrl.disk.stored_groups import stored_groups
from agentrl.errors import RunError
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.runtime.drivers.position import stream_index
from agentrl.runtime.progress import Progress
from agentrl.types import Termination, TrajectoryGroup
from tests.runtime.driver_fakes import (
    TASKS,
    Fuse,
    Killed,
    StreamingWorker,
    drive,
    fake_config,
    places_to_kill,
    trained_tasks,
)
from tests.runtime.drivers.test_driver import StopAt, digest_of_store, killed_and_resumed, lines

MODES: dict[str, dict[str, Any]] = {
    "b": {"schedule": {"trigger_parameter_sync_step": 2}, "engine": "vllm"},
    "c": {"schedule": {"staleness_threshold": 1.0}, "engine": "vllm"},
    "d": {"schedule": {"staleness_threshold": 1.0, "partial_rollout": True}, "engine": "vllm"},
    "d, trigger 2": {
        "schedule": {
            "staleness_threshold": 0.5,
            "trigger_parameter_sync_step": 2,
            "partial_rollout": True,
        },
        "engine": "vllm",
    },
    "d, shared weights": {"schedule": {"staleness_threshold": 1.0, "partial_rollout": True}},
    "drop": {
        "schedule": {"staleness_threshold": 2.0, "partial_rollout": True, "max_version_lag": 1},
        "engine": "vllm",
    },
}
BOUNDS = {"b": 1, "c": 1, "d": 1, "d, trigger 2": 2, "d, shared weights": 1}
every_mode = pytest.mark.parametrize("mode", MODES)


def config_of(tmp_path: Path, mode: str, **train: Any) -> RunConfig:
    return fake_config(tmp_path, **MODES[mode], **train)


def stored(config: RunConfig) -> dict[int, list[TrajectoryGroup]]:
    store = TrajectoryStore(Path(config.run.dir) / config.run.name / "trajectories")
    return {step: stored_groups(store, "train", step) for step in store.steps("train")}


def is_dropped(group: TrajectoryGroup) -> bool:
    return all(row.termination is Termination.STALE for row in group.trajectories)


def check_stream(config: RunConfig, steps: int) -> None:
    """Every task of the stream is stored at most once, and nothing far ahead of a hole."""
    groups = [group for members in stored(config).values() for group in members]
    indices = [stream_index(group) for group in groups]
    assert len(set(indices)) == len(indices), "a task was trained twice"
    expected = TaskCursor(TASKS.train, seed=0).take(max(indices) + 1)
    assert all(
        expected[index].id == group.task_id for index, group in zip(indices, groups, strict=True)
    )
    for members in stored(config).values():
        assert sum(not is_dropped(group) for group in members) == 3
    assert len(stored(config)) == steps


@every_mode
async def test_a_run_from_end_to_end(tmp_path: Path, mode: str) -> None:
    config = config_of(tmp_path, mode)
    worker = StreamingWorker(Fuse())
    result, trainer = await drive(config, worker=worker)
    assert (result.steps, result.reason, trainer.version) == (7, "all steps done", 7)
    check_stream(config, 7)
    assert trainer.digest == digest_of_store(config)
    rolled_out = [name for name in worker.started if name.startswith("stream/")]
    made = sum(len(groups) for groups in stored(config).values())
    # Nothing is begun that the run does not train. Fails if the back-pressure knows no end.
    assert len(rolled_out) == made
    assert [item.state.step for item in list_checkpoints(tmp_path / "fake" / "checkpoints")] == [
        6,
        7,
    ]
    assert [line["step"] for line in lines(config)] == list(range(8))
    scored = [line["step"] for line in lines(config) if "eval/held/score" in line]
    assert scored == [0, 2, 4, 6, 7]


@pytest.mark.parametrize("mode", BOUNDS)
async def test_no_token_is_older_than_the_bound(tmp_path: Path, mode: str) -> None:
    """Fails if the batch is whatever finished first, and in `c` if weights move under rollouts."""
    config = config_of(tmp_path, mode, steps=20)
    await drive(config, worker=StreamingWorker(Fuse()))
    for step, groups in stored(config).items():
        versions = {
            v for group in groups for row in group.trajectories for v in row.policy_versions
        }
        assert step - 1 - min(versions) <= BOUNDS[mode], f"step {step}"
        mixed = [row for g in groups for row in g.trajectories if len(set(row.policy_versions)) > 1]
        if not config.schedule.partial_rollout:
            assert not mixed, f"step {step}"
    for line in lines(config):
        if "staleness/lag_max" in line:
            assert 0 <= line["staleness/lag_mean"] <= line["staleness/lag_max"] <= BOUNDS[mode]
            shares = [line[name] for name in line if name.startswith("staleness/share_lag_")]
            assert sum(shares) == pytest.approx(1)
            assert 0 <= line["async/trainer_idle_share"] <= 1
            assert 0 <= line["async/rollout_idle_share"] <= 1


async def test_partial_rollouts_go_on_in_the_middle(tmp_path: Path) -> None:
    config = config_of(tmp_path, "d", steps=12)
    worker = StreamingWorker(Fuse())
    worker.pace_s = 0.003  # slower than a step is made, also on a busy machine
    await drive(config, worker=worker)
    rows = [row for groups in stored(config).values() for g in groups for row in g.trajectories]
    assert any(len(set(row.policy_versions)) > 1 for row in rows)
    assert all(list(row.policy_versions) == sorted(row.policy_versions) for row in rows)


async def test_a_group_may_end_while_engines_load(tmp_path: Path) -> None:
    """Fails if another begins then, under weights that are not yet those of all engines."""

    class Graded(StreamingWorker):
        ended = False

        async def run_group(self, task, *, group_id, n, sampling, seed):  # type: ignore[no-untyped-def]
            assert group_id.startswith("eval") or not self.client.loading
            self.client.load_s = 0.01
            group = await super().run_group(
                task, group_id=group_id, n=n, sampling=sampling, seed=seed
            )
            if group_id.startswith("stream/00000003-"):
                async with asyncio.timeout(120):
                    while not self.client.loading:
                        await asyncio.sleep(0.001)
                self.ended = True
            return group

    worker = Graded(Fuse())
    schedule = {"staleness_threshold": 3.0, "partial_rollout": True}
    config = fake_config(tmp_path, schedule=schedule, engine="vllm")
    result, _ = await drive(config, worker=worker, in_flight=6)
    assert (result.steps, worker.ended) == (7, True)


async def test_the_trainer_waits_for_a_long_rollout_before_it_is_too_old(tmp_path: Path) -> None:
    """Fails if short ones overtake it without an end."""

    class OneIsLong(StreamingWorker):
        async def run_group(self, task, **kwargs):  # type: ignore[no-untyped-def]
            if kwargs["group_id"].startswith("stream/00000000"):
                versions = self.client.version
                await asyncio.sleep(0.3)
                group = await super().run_group(task, **kwargs)
                rows = (replace(row, policy_versions=(versions,) * 3) for row in group.trajectories)
                return replace(group, trajectories=tuple(rows))
            return await super().run_group(task, **kwargs)

    config = config_of(tmp_path, "d")
    await drive(config, worker=OneIsLong(Fuse()))
    (step,) = [n for n, groups in stored(config).items() if 0 in map(stream_index, groups)]
    # The bound is 1 and it began at version 0: the first step may overtake it, the second not.
    assert step == 2


async def test_rollouts_after_a_replay_use_the_replayed_weights(tmp_path: Path) -> None:
    """Fails if the engines keep the weights of the checkpoint until a sync is due."""

    class AfterTraining(Fuse):
        def __call__(self, place: str) -> None:
            super().__call__(place)
            if place == "train ends":
                raise Killed(place)

    config = config_of(tmp_path, "b")
    config = config.model_copy(update={"eval": config.eval.model_copy(update={"every_steps": 0})})
    fuse = AfterTraining()
    with pytest.raises(Killed):
        await drive(config, fuse=fuse, worker=StreamingWorker(fuse))
    assert list(stored(config)) == [1]
    await drive(config, worker=StreamingWorker(Fuse()))
    rows = [row for group in stored(config)[2] for row in group.trajectories]
    assert {version for row in rows for version in row.policy_versions} == {1}


async def test_old_rollouts_are_dropped_counted_and_kept(tmp_path: Path) -> None:
    config = fake_config(
        tmp_path,
        schedule={"staleness_threshold": 3.0, "partial_rollout": True, "max_version_lag": 0},
        engine="vllm",
        steps=8,
    )
    await drive(config, worker=StreamingWorker(Fuse()))
    check_stream(config, 8)
    dropped = 0
    for line in lines(config)[1:]:
        groups = stored(config)[line["step"]]
        rows = [row for group in groups for row in group.trajectories]
        stale = [row for row in rows if row.termination is Termination.STALE]
        dropped += len(stale)
        assert line["rollout/started"] == len(rows)
        assert line["rollout/stale_dropped"] == len(stale) == line["rollout/dropped"]
        assert line["rollout/termination/stale"] == len(stale)
        assert all(min(row.policy_versions) < line["step"] - 1 for row in stale)
        assert line["staleness/lag_max"] == 0, "dropped ones count as trained"
        lost = {group.task_id for group in groups if is_dropped(group)}
        kept = {group.task_id for group in groups if not is_dropped(group)}
        assert line["staleness/tasks_dropped"] == len(lost - kept)
        trained = [row for row in rows if row.termination is not Termination.STALE]
        assert all(min(row.policy_versions) == line["step"] - 1 for row in trained)
        # A dropped group does not count as one of the step's. Fails if the batch shrinks instead.
        assert len(trained) == 9
    assert dropped > 0


async def test_masked_tokens_stay_in_the_store_and_leave_the_loss(tmp_path: Path) -> None:
    config = fake_config(
        tmp_path,
        schedule={
            "staleness_threshold": 3.0,
            "partial_rollout": True,
            "max_version_lag": {"mask": 0},
        },
        engine="vllm",
        steps=8,
    )
    await drive(config, worker=StreamingWorker(Fuse()))
    masked = 0
    for line in lines(config)[1:]:
        rows = [row for group in stored(config)[line["step"]] for row in group.trajectories]
        old = sum(v < line["step"] - 1 for row in rows for v in row.policy_versions)
        assert all(row.response_mask == (1, 1, 1) for row in rows)
        assert line["batch/tokens_masked_stale"] == old
        assert line["rollout/stale_dropped"] == 0
        masked += old
    assert masked > 0


@every_mode
async def test_scores_come_from_the_weights_of_their_step(tmp_path: Path, mode: str) -> None:
    """Fails if an evaluation does not sync first where the trigger is not due."""
    config = config_of(tmp_path, mode)
    await drive(config, worker=StreamingWorker(Fuse()))
    store = TrajectoryStore(tmp_path / "fake" / "trajectories")
    for step in (0, 2, 4, 6, 7):
        rows = [item.trajectory for item in store.read("eval/held", step=step)]
        assert {version for row in rows for version in row.policy_versions} == {step}


@every_mode
async def test_a_kill_at_every_place_loses_nothing(tmp_path: Path, mode: str) -> None:
    """Fails if the cursor of a checkpoint counts what was claimed as done (tasks are skipped), if
    a resume rolls out what is stored (trained twice), or if it goes on after the last index."""
    fuse = Fuse()
    await drive(config_of(tmp_path / "w", mode, steps=4), fuse=fuse, worker=StreamingWorker(fuse))
    assert len(fuse.places) > 40
    # The modes share their code: every other place of a kind in the boldest, few in the others.
    every = 2 if mode == "d, trigger 2" else 6
    for at in places_to_kill(fuse.places, every, list(MODES).index(mode)):
        config = config_of(tmp_path / str(at), mode, steps=4)
        if (resumed := await killed_and_resumed(config, Fuse(at))) is None:
            continue
        place, result, trainer = resumed
        check_stream(config, 4)
        assert trainer.digest == digest_of_store(config), place
        assert [line["step"] for line in lines(config)] == list(range(5)), place
        assert result.comparisons[0].before.step == 0, place


async def test_a_damaged_step_is_made_again(tmp_path: Path) -> None:
    """Fails if its groups count as made: the last step then waits for ever for them."""

    class AtSync(Fuse):
        def __call__(self, place: str) -> None:
            super().__call__(place)
            if place == "sync to 2":
                raise Killed(place)

    config = config_of(tmp_path, "c", steps=4)
    fuse = AtSync()
    with pytest.raises(Killed):
        await drive(config, fuse=fuse, worker=StreamingWorker(fuse))
    path = TrajectoryStore(tmp_path / "fake" / "trajectories").path(2, "train")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    async with asyncio.timeout(120):
        result, _ = await drive(config, worker=StreamingWorker(Fuse()))
    assert result.steps == 4
    check_stream(config, 4)


@every_mode
async def test_killed_again_and_again(tmp_path: Path, mode: str) -> None:
    config = config_of(tmp_path, mode, steps=12)
    kills = 0
    for at in (40, 7, 25, 3, 31, 1, 44, 12, 60, 22, 5, 80):
        fuse = Fuse(at)
        try:
            result, trainer = await drive(config, fuse=fuse, worker=StreamingWorker(fuse))
            break
        except Killed:
            kills += 1
    else:
        result, trainer = await drive(config, worker=StreamingWorker(Fuse()))
    assert kills >= 6
    assert result.steps == 12
    check_stream(config, 12)
    assert trainer.digest == digest_of_store(config)
    # What was begun and lost is rolled out again before anything new: no hole is left behind.
    indices = sorted(stream_index(g) for groups in stored(config).values() for g in groups)
    assert indices == list(range(len(indices)))


async def test_a_checkpoint_names_what_was_trained_before_its_turn(tmp_path: Path) -> None:
    config = config_of(tmp_path, "d")
    await drive(config, worker=StreamingWorker(Fuse()))
    for item in list_checkpoints(tmp_path / "fake" / "checkpoints"):
        steps = stored(config)
        done = {stream_index(g) for n in range(1, item.state.step + 1) for g in steps[n]}
        frontier = item.state.cursor["epoch"] * 10 + item.state.cursor["position"]
        assert done == {*range(frontier), *item.state.cursor["ahead"]}


@pytest.mark.parametrize("phase", ["rollout", "train", "sync", "eval held"])
@pytest.mark.parametrize("mode", ["c", "d"])
async def test_a_signal_keeps_the_last_finished_step(tmp_path: Path, mode: str, phase: str) -> None:
    config = config_of(tmp_path, mode)
    stop = StopSwitch()
    worker = StreamingWorker(Fuse())
    with pytest.raises(Interrupted) as caught:
        await drive(config, stop=stop, worker=worker, progress=StopAt(stop, phase, after=1))
    assert caught.value.signal == signal.SIGTERM
    # What was in flight has cleaned up before the run ends.
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("group ")]
    checkpoint = list_checkpoints(tmp_path / "fake" / "checkpoints")[-1]
    model = json.loads((checkpoint.path / "model.json").read_text())
    # Fails if a step that was cut while waiting for its weights is saved under the step before.
    assert model[0] == checkpoint.state.step == max(trained_tasks(config))
    result, trainer = await drive(config, worker=StreamingWorker(Fuse()))
    assert result.steps == 7
    check_stream(config, 7)
    assert trainer.digest == digest_of_store(config)


async def test_a_signal_in_the_wait_for_those_in_flight(tmp_path: Path) -> None:
    """Fails if the step that was trained before the wait is lost or saved with the wrong number."""

    class Endless(StreamingWorker):
        async def run_group(self, task, **kwargs):  # type: ignore[no-untyped-def]
            if kwargs["group_id"].startswith("stream/00000003"):
                self.started.append(kwargs["group_id"])
                await asyncio.sleep(600)
            return await super().run_group(task, **kwargs)

    class StopInDrain(Progress):
        def trained(self, done: int, total: int) -> None: ...

        def phase(self, name: str, total: int = 0) -> None:
            if name == "train":
                loop.call_later(0.1, stop.request)

    loop = asyncio.get_running_loop()
    config, stop = config_of(tmp_path, "c"), StopSwitch()
    with pytest.raises(Interrupted):
        await drive(config, stop=stop, worker=Endless(Fuse()), progress=StopInDrain())
    states = [item.state for item in list_checkpoints(tmp_path / "fake" / "checkpoints")]
    assert [(state.step, state.version) for state in states] == [(1, 1)]
    assert list(trained_tasks(config)) == [1]
    result, trainer = await drive(config, worker=StreamingWorker(Fuse()))
    assert (result.steps, trainer.digest) == (7, digest_of_store(config))
    check_stream(config, 7)


async def test_a_worker_that_raises_ends_the_run(tmp_path: Path) -> None:
    """A broken invariant. Fails if an error in the background leaves the trainer waiting."""

    class Broken(StreamingWorker):
        async def run_group(self, task, **kwargs):  # type: ignore[no-untyped-def]
            if kwargs["group_id"].startswith("stream/00000004"):
                raise AssertionError("unequal lengths")
            return await super().run_group(task, **kwargs)

    with pytest.raises(AssertionError, match="unequal lengths"):
        await asyncio.wait_for(drive(config_of(tmp_path, "d"), worker=Broken(Fuse())), 120)


async def test_broken_infrastructure_ends_the_run(tmp_path: Path) -> None:
    worker = StreamingWorker(Fuse(), end=lambda index: Termination.ENV_CRASHED)
    with pytest.raises(RunError, match="env_crashed: it broke"):
        await drive(config_of(tmp_path, "d"), worker=worker)


async def test_failed_groups_are_committed_and_not_rolled_out_for_ever(tmp_path: Path) -> None:
    class Moody(StreamingWorker):
        def make_row(self, task, group_id, index, seed):  # type: ignore[no-untyped-def]
            bad = group_id.startswith(("stream/00000001", "stream/00000004"))
            self.end = lambda _: Termination.ENV_CRASHED if bad else Termination.ENV_DONE
            return super().make_row(task, group_id, index, seed)

    config = config_of(tmp_path, "d")
    worker = Moody(Fuse())
    result, _ = await drive(config, worker=worker)
    assert result.steps == 7
    assert set(Counter(worker.started).values()) == {1}
    by_step = {line["step"]: line for line in lines(config)}
    assert sum(line.get("rollout/dropped", 0) for line in by_step.values()) == 6


async def test_runs_of_another_schedule_are_not_mixed_up(tmp_path: Path) -> None:
    config = fake_config(tmp_path, engine="vllm")
    with pytest.raises(Killed):
        await drive(config, fuse=Fuse(60))
    with pytest.raises(RunError, match="resume with the schedule the run was begun with"):
        await drive(config_of(tmp_path, "c"), worker=StreamingWorker(Fuse()))
