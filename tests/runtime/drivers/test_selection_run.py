"""Runs that choose their tasks: kills, and the numbers that are reported."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.config.schema import SelectionSection
from agentrl.data import TaskCursor
from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.runtime.assembly.parts import TaskSets
from agentrl.runtime.drivers.position import stream_index
from agentrl.types import Task, Trajectory
from tests.runtime.driver_fakes import (
    TASKS,
    FakeWorker,
    Fuse,
    Killed,
    StreamingWorker,
    drive,
    fake_config,
    trained_tasks,
)
from tests.runtime.drivers.test_asynchronous import stored
from tests.runtime.drivers.test_driver import digest_of_store, lines

BY_FAMILY = SelectionSection(by="family")
RATES = (0.0, 0.0, 0.0, 0.0, 0.02, 0.5, 0.6, 0.7, 0.98, 1.0)
"""Pass rate of each family: most groups of most families are flat."""


def tasks_of(selection: SelectionSection | None, *, tasks: int = 30) -> TaskSets:
    train = [
        Task(id=f"t{n}", prompt="?", metadata={"family": n % 10, "rate": RATES[n % 10]})
        for n in range(tasks)
    ]
    return TaskSets(train=train, evals=TASKS.evals, selection=selection)


class ByRate(FakeWorker):
    """Solves tasks as often as they say; the same seed gives the same rewards."""

    def make_row(self, task: Task, group_id: str, index: int, seed: int) -> Trajectory:
        row = super().make_row(task, group_id, index, seed)
        rate = task.metadata.get("rate", 0.5)
        solved = float(random.Random(f"{task.id}/{seed}/{index}").random() < rate)
        return replace(row, reward=solved, score=solved)


class StreamByRate(ByRate, StreamingWorker):
    """The same beside the trainer."""


def config_of(folder: Path, schedule: Mapping[str, Any] | None = None, **train: Any) -> RunConfig:
    return fake_config(folder, schedule=schedule, **train)


async def test_a_kill_at_any_place_changes_no_task(tmp_path: Path) -> None:
    """Fails if outcomes are not in the checkpoint, or those of replayed steps are not learned."""
    fuse, tasks = Fuse(), tasks_of(BY_FAMILY)
    await drive(config_of(tmp_path / "whole"), fuse=fuse, worker=ByRate(fuse), tasks=tasks)
    whole = trained_tasks(config_of(tmp_path / "whole"))
    plain = TaskCursor(tasks.train, seed=0)
    assert whole[7] != [task.id for task in plain.take(21)[18:]]
    for at in range(4, len(fuse.places), 29):
        config, blown = config_of(tmp_path / str(at)), Fuse(at)
        with pytest.raises(Killed):
            await drive(config, fuse=blown, worker=ByRate(blown), tasks=tasks)
        _, trainer = await drive(config, worker=ByRate(Fuse()), tasks=tasks)
        place = f"killed at {at}: {fuse.places[at - 1]}"
        assert trained_tasks(config) == whole, place
        assert trainer.digest == digest_of_store(config), place
    states = [
        checkpoint.state.cursor["selection"]
        for folder in ("whole", "4")
        if (checkpoint := latest_checkpoint(tmp_path / folder / "fake" / "checkpoints"))
    ]
    assert states[0] == states[1]


@pytest.mark.parametrize(
    "schedule",
    [{"oversample": 1.5}, {"staleness_threshold": 1.0, "partial_rollout": True}],
    ids=["tail batching", "asynchronous"],
)
async def test_drivers_that_train_out_of_order(tmp_path: Path, schedule: dict[str, Any]) -> None:
    """No place of the stream twice, and uniform places hold the tasks of the plain order."""
    fuse, tasks = Fuse(), tasks_of(BY_FAMILY)
    await drive(
        config_of(tmp_path / "w", schedule), fuse=fuse, worker=StreamByRate(fuse), tasks=tasks
    )
    order = [task.id for task in TaskCursor(tasks.train, seed=0).take(30)]
    uniform = TaskCursor(tasks.train, seed=0, selection=BY_FAMILY)
    for at in (23, 47):
        config, blown = config_of(tmp_path / str(at), schedule), Fuse(at)
        with pytest.raises(Killed):
            await drive(config, fuse=blown, worker=StreamByRate(blown), tasks=tasks)
        result, trainer = await drive(config, worker=StreamByRate(Fuse()), tasks=tasks)
        assert result.steps == 7
        assert trainer.digest == digest_of_store(config)
        groups = [group for step in stored(config).values() for group in step]
        places = [stream_index(group) for group in groups]
        assert len(set(places)) == len(places)
        for group, place in zip(groups, places, strict=True):
            if uniform.is_uniform(place):
                assert group.task_id == order[place // 4]
        assert (
            "selection/chosen_share" in lines(config)[-1]
            or "selection/chosen_share" in (lines(config)[-2])
        )


async def run_of(
    folder: Path, selection: SelectionSection | None, *, seed: int
) -> list[dict[str, float]]:
    config = config_of(folder, steps=26, minibatches=1, epochs_per_batch=1)
    config = config.model_copy(
        update={
            "run": config.run.model_copy(update={"seed": seed}),
            "rollout": config.rollout.model_copy(
                update={"prompts_per_step": 8, "n_samples_per_prompt": 8}
            ),
            "eval": config.eval.model_copy(update={"every_steps": 0}),
            "checkpoint": config.checkpoint.model_copy(update={"every_steps": 100}),
        }
    )
    await drive(config, worker=ByRate(Fuse()), tasks=tasks_of(selection, tasks=50))
    return [line for line in lines(config) if "reward" in line]


async def test_fewer_groups_are_flat_and_the_dataset_is_still_reported(tmp_path: Path) -> None:
    """Families of known pass rates: two thirds of the groups are flat without a selection."""
    flat: dict[str, list[float]] = {"none": [], "family": []}
    reported: list[float] = []
    trained: list[float] = []
    for seed in range(3):
        for name, selection in (("none", None), ("family", BY_FAMILY)):
            metrics = await run_of(tmp_path / f"{name}{seed}", selection, seed=seed)
            flat[name] += [line["frac_reward_zero_std"] for line in metrics]
            if selection:
                reported += [line["selection/dataset_score"] for line in metrics]
                trained += [line["score"] for line in metrics]
                assert fmean(line["selection/chosen_share"] for line in metrics) == 0.75
    assert fmean(flat["none"]) > 0.6
    assert fmean(flat["family"]) < 0.6 * fmean(flat["none"])
    # 52 of the groups of a run are uniform, and the dataset has 50 tasks.
    assert fmean(reported) == pytest.approx(fmean(RATES), abs=0.03)
    assert fmean(trained) > fmean(RATES) + 0.1
