"""What comes after a rollback: damaged checkpoints, further rollbacks, what sinks show."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.data import TaskCursor, TrajectoryStore
from agentrl.disk.checkpoint import latest_checkpoint, list_checkpoints
from agentrl.disk.rollback import (
    RollbackPlan,
    begin_rollback,
    finish_rollbacks,
    read_rollbacks,
)
from agentrl.errors import RunError
from tests.runtime.driver_fakes import TASKS, FakeWorker, StreamingWorker, trained_tasks
from tests.runtime.health.test_rules import LOW, Notes, lines, poor, ruled, run_of, to_the_end
from tests.runtime.tiny_project import agentrl, write_project


def further(config: RunConfig, **health: Any) -> RunConfig:
    return config.model_copy(update={"health": config.health.model_copy(update=health)})


def damage(run: Path) -> list[int]:
    found = list_checkpoints(run / "checkpoints")
    for item in found:
        (item.path / "model.json").write_text("")
    return [item.state.step for item in found]


@pytest.mark.parametrize(
    ("schedule", "engine"),
    [
        ({}, "embedded"),
        ({"oversample": 1.5}, "embedded"),
        ({"staleness_threshold": 1.0}, "vllm"),
    ],
)
async def test_after_a_rollback_a_run_goes_on_without_the_checkpoint_it_went_back_to(
    tmp_path: Path, schedule: dict[str, Any], engine: str
) -> None:
    """Fails if the place in the tasks is known to that checkpoint alone: its stored steps do not
    fit the tasks then, or the tasks that were rolled back come again."""
    config = ruled(tmp_path, f"{LOW} -> rollback", schedule=schedule, engine=engine, steps=6)
    made = 0

    def poor_for_a_while(group_id: str, seed: int) -> bool:
        nonlocal made
        made += not group_id.startswith("eval")
        return made > 27 and not (run_of(config) / "rolled-back").exists()

    kind = FakeWorker if engine == "embedded" else StreamingWorker
    worker = poor(kind, poor_for_a_while)
    _, trainer = await to_the_end(config, worker=worker)
    (rollback,) = read_rollbacks(run_of(config)).in_effect
    before = trained_tasks(config)
    assert max(damage(run_of(config))) == 6
    # Nothing complete is left: it begins with the first model, and trains what is stored.
    _, again = await to_the_end(config, worker=worker)
    assert (again.version, again.digest) == (6, trainer.digest)
    assert trained_tasks(config) == before
    # Also where the stored steps end at the one that was gone back to.
    damage(run_of(config))
    for path in (run_of(config) / "trajectories").rglob("step_*"):
        if int(path.name[5:11]) > rollback.plan.to:
            path.unlink()
    await to_the_end(config, worker=worker)
    assert sorted(trained_tasks(config)) == list(range(1, 7))
    if not schedule:
        names = [task.id for task in TaskCursor(TASKS.train, seed=0).take(40)]
        skipped, first = 3 * rollback.plan.step, rollback.plan.to + 1
        tasks = trained_tasks(config)
        after = [task for step in range(first, 7) for task in tasks[step]]
        assert after == names[skipped : skipped + len(after)]
    else:
        aside = TrajectoryStore(rollback.folder / "trajectories")
        kept = TrajectoryStore(run_of(config) / "trajectories")
        gone, here = (
            {
                row.trajectory.group_id
                for step in s.steps("train")
                for row in s.read("train", step=step)
            }
            for s in (aside, kept)
        )
        assert gone
        assert not gone & here


def test_a_rollback_that_cannot_be_read_says_what_it_held(tmp_path: Path) -> None:
    """Fails if a run would go on with the tasks that were rolled back, and say nothing."""
    begin_rollback(tmp_path, RollbackPlan(step=5, to=2, why="test", cursor={}, elapsed_s=1.0))
    finish_rollbacks(tmp_path)
    path = tmp_path / "rolled-back" / "1" / "rollback.json"
    path.write_text("{")
    with pytest.raises(RunError, match=r"rollback\.json cannot be read.*which tasks come after"):
        read_rollbacks(tmp_path)


def poor_at(config: RunConfig, steps: list[set[int]]) -> Any:
    """Rewards are 0.01 in these steps, before the first rollback, before the second and so on."""

    def poor_now(group_id: str, seed: int) -> bool:
        if group_id.startswith("eval"):
            return False
        count = read_rollbacks(run_of(config)).count
        step = int(group_id.split("/")[0][5:])
        return count < len(steps) and step in steps[count]

    return poor_now


@pytest.mark.parametrize("keep_last", [1, 7])
async def test_a_collapse_right_after_a_rollback_is_rolled_back_too(
    tmp_path: Path, keep_last: int
) -> None:
    """Fails if it stops the run, as if weights that were measured had never been good; or if it
    does not go back further where an older checkpoint is there."""
    config = ruled(tmp_path, f"{LOW} -> rollback", max_rollbacks=3)
    keeping = config.checkpoint.model_copy(update={"keep_last": keep_last})
    config = config.model_copy(update={"checkpoint": keeping})
    notes = Notes()
    worker = poor(FakeWorker, poor_at(config, [{4, 5}, {3, 4}, {5, 6}]))
    result, trainer = await to_the_end(config, worker=worker, progress=notes)
    assert (result.steps, result.reason, trainer.version) == (7, "all steps done", 7)
    went = [text.split(",")[0] for text in notes.texts if text.startswith("going back")]
    second = "step 1" if keep_last == 7 else "step 2"
    assert went == [
        "going back from step 5 to step 2",
        f"going back from step 4 to {second}",
        "going back from step 6 to step 3",
    ]
    assert any("rollback 3 of at most 3" in text for text in notes.texts)
    trained = [line["step"] for line in lines(config) if "timing_s/step" in line]
    assert trained == list(range(1, 8))
    assert [rollback.plan.step for rollback in read_rollbacks(run_of(config)).in_effect][-1] == 6


async def test_a_larger_number_of_rollbacks_lets_a_stopped_run_go_on(tmp_path: Path) -> None:
    config = ruled(tmp_path, f"{LOW} -> rollback", max_rollbacks=1)
    worker = poor(FakeWorker, poor_at(config, [{4, 5}, {4, 5}]))
    result, _ = await to_the_end(config, worker=worker)
    assert result.steps == 5
    assert "known to be good is step-2, and --resume with a larger health.max_rollbacks" in (
        result.reason
    )
    result, _ = await to_the_end(further(config, max_rollbacks=2), worker=worker)
    assert (result.steps, result.reason) == (7, "all steps done")
    assert read_rollbacks(run_of(config)).count == 2


def test_tensorboard_forgets_what_was_rolled_back_before_a_kill(tmp_path: Path) -> None:
    """Fails if only the process that moves the files tells the sinks."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = write_project(tmp_path, train__steps=5, checkpoint__every_steps=1, eval__datasets={})
    keep = ("checkpoint.keep_last=9", "checkpoint.save=all")
    status, text = agentrl(tmp_path / "out.txt", "train", path, *keep)
    assert status == 0, text
    run = tmp_path / "runs" / "tiny"
    last = latest_checkpoint(run / "checkpoints")
    assert last is not None
    plan = RollbackPlan(step=5, to=2, why="test", cursor=last.state.cursor, elapsed_s=1.0)
    begin_rollback(run, plan)
    finish_rollbacks(run)
    # And the checkpoint that it went back to is damaged.
    (run / "checkpoints" / "step-2" / "config.json").write_text("{")
    status, text = agentrl(tmp_path / "on.txt", "train", run, "--resume", "train.steps=4")
    assert status == 0, text
    said = " ".join(text.split())
    assert "step-2 is damaged" in said
    assert "going on from step 1" in said
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("reward")] == [1, 2, 3, 4]
    document = json.loads((run / "rolled-back" / "1" / "rollback.json").read_text())
    assert document["to"] == 2
