"""An evaluation of a run ahead: the trainer trains on, and the score stays that of its step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentrl.config.schema import CheckpointSection
from agentrl.data import TrajectoryStore
from agentrl.disk.checkpoint import list_checkpoints
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.runtime.drivers.asynchronous import AsynchronousRun
from agentrl.runtime.progress import Progress
from agentrl.runtime.rank_restarts import RankLost
from agentrl.runtime.scoring.evaluation_beside import EvaluationBeside, why_training_stops
from tests.runtime.driver_fakes import Fuse, StreamingWorker, drive, fake_config
from tests.runtime.drivers.test_asynchronous import check_stream
from tests.runtime.drivers.test_driver import digest_of_store, lines

AHEAD: dict[str, dict[str, Any]] = {
    "staleness 1": {"staleness_threshold": 1.0},
    "partial, staleness 2": {"staleness_threshold": 2.0, "partial_rollout": True},
    "trigger 2": {"trigger_parameter_sync_step": 2, "staleness_threshold": 0.5},
    "lag 2": {"staleness_threshold": 2.0, "partial_rollout": True, "max_version_lag": 2},
}
STEPS_BESIDE = {"staleness 1": 2, "partial, staleness 2": 3, "trigger 2": 3, "lag 2": 3}
"""Steps that the bound on age lets a run train between the sync of an evaluation and the next."""


class SlowScores(StreamingWorker):
    """The evaluation in the middle of the run takes until training has begun so often beside it."""

    def __init__(self, fuse: Fuse, *, wanted: int, more_s: float = 0.0) -> None:
        super().__init__(fuse)
        self.wanted, self.more_s = wanted, more_s
        self.trained: dict[int, int] = {}
        """Trainings that began while the step was evaluated."""

    async def run_group(self, task, *, group_id: str, **kwargs):  # type: ignore[no-untyped-def]
        if group_id.startswith("eval-held-"):
            step = int(group_id.split("/")[0].rsplit("-", 1)[1])
            if step == 5:
                before = self.trainings
                async with asyncio.timeout(60):
                    while self.trainings - before < self.wanted:
                        await asyncio.sleep(0.001)
                self.trained[step] = self.trainings - before
                await asyncio.sleep(self.more_s)
        return await super().run_group(task, group_id=group_id, **kwargs)

    @property
    def trainings(self) -> int:
        return self.fuse.places.count("train begins")


@pytest.mark.parametrize("schedule", AHEAD)
async def test_training_goes_on_as_far_as_the_bound_allows(tmp_path: Path, schedule: str) -> None:
    """Fails (and times out) where the trainer stands still until the evaluation has ended."""
    config = fake_config(tmp_path, schedule=AHEAD[schedule], engine="vllm", steps=10)
    config = config.model_copy(update={"eval": config.eval.model_copy(update={"every_steps": 5})})
    fuse = Fuse()
    worker = SlowScores(fuse, wanted=STEPS_BESIDE[schedule])
    result, trainer = await drive(config, fuse=fuse, worker=worker)
    assert result.steps == 10
    assert trainer.digest == digest_of_store(config)
    assert worker.trained[5] >= worker.wanted
    store = TrajectoryStore(tmp_path / "fake" / "trajectories")
    for step in store.steps("eval/held"):
        rows = [item.trajectory for item in store.read("eval/held", step=step)]
        assert {version for row in rows for version in row.policy_versions} == {step}
    scored = [line["step"] for line in lines(config) if "eval/held/score" in line]
    assert sorted(scored) == [0, 5, 10]
    bound = STEPS_BESIDE[schedule] - 1
    by_step = {line["step"]: line for line in lines(config) if "staleness/lag_max" in line}
    assert max(line["staleness/lag_max"] for line in by_step.values()) <= bound
    check_stream(config, 10)


async def test_the_sync_waits_for_an_evaluation_that_is_slower(tmp_path: Path) -> None:
    """Fails if weights are swapped under it: its tokens would be of two versions."""

    config = fake_config(tmp_path, schedule=AHEAD["staleness 1"], engine="vllm", steps=10)
    config = config.model_copy(update={"eval": config.eval.model_copy(update={"every_steps": 5})})
    fuse = Fuse()
    await drive(config, fuse=fuse, worker=SlowScores(fuse, wanted=2, more_s=0.3))
    waits = {
        line["step"]: line["timing_s/evaluation_wait"]
        for line in lines(config)
        if line.get("timing_s/evaluation_wait")
    }
    # Steps 6 and 7 are trained beside it; then another step needs newer weights first.
    assert list(waits) == [7]
    assert waits[7] > 0.2
    store = TrajectoryStore(tmp_path / "fake" / "trajectories")
    rows = [item.trajectory for item in store.read("eval/held", step=5)]
    assert {version for row in rows for version in row.policy_versions} == {5}


async def test_a_checkpoint_gets_the_score_that_came_after_it(tmp_path: Path) -> None:
    config = fake_config(tmp_path, schedule=AHEAD["staleness 1"], engine="vllm", steps=7)
    await drive(config, worker=StreamingWorker(Fuse()))
    states = [item.state for item in list_checkpoints(tmp_path / "fake" / "checkpoints")]
    by_step = {line["step"]: line for line in lines(config) if "eval/held/score" in line}
    assert [state.step for state in states] == [6, 7]
    for state in states:
        assert state.scores["eval/held/score"] == by_step[state.step]["eval/held/score"]


class Notes(Progress):
    """Keeps what the run says."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def names_in_flight() -> list[str]:
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith(("group ", "evaluation "))]


async def test_a_signal_ends_an_evaluation_beside_training(tmp_path: Path) -> None:
    """What was trained is kept; the score that is missing is named, and the run can go on."""
    stop, progress = StopSwitch(), Notes()

    class Endless(StreamingWorker):
        async def run_group(self, task, *, group_id: str, **kwargs):  # type: ignore[no-untyped-def]
            if group_id.startswith("eval-held-2/"):
                if group_id.startswith("eval-held-2/0000"):  # a second signal ends the process
                    asyncio.get_running_loop().call_later(0.5, stop.request)
                await asyncio.sleep(600)
            return await super().run_group(task, group_id=group_id, **kwargs)

    config = fake_config(tmp_path, schedule=AHEAD["staleness 1"], engine="vllm")
    with pytest.raises(Interrupted):
        await drive(config, worker=Endless(Fuse()), stop=stop, progress=progress)
    said = progress.notes[-1:]
    assert said == ["the evaluation of step 2 is not finished, and its score is missing"]
    assert not names_in_flight()
    states = [item.state for item in list_checkpoints(tmp_path / "fake" / "checkpoints")]
    assert [(state.step, state.version) for state in states] == [(3, 3), (4, 4)]
    result, trainer = await drive(config, worker=StreamingWorker(Fuse()))
    assert (result.steps, trainer.digest) == (7, digest_of_store(config))
    check_stream(config, 7)


class Beside(Fuse):
    """Fails in the training that begins beside the evaluation of step 2."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error, self.evaluates = error, False

    def __call__(self, place: str) -> None:
        super().__call__(place)
        if self.evaluates and place == "train begins":
            raise self.error


class Stuck(StreamingWorker):
    """The evaluation of step 2 does not end, nor does a group that begins after it."""

    def __init__(self, fuse: Beside) -> None:
        super().__init__(fuse)
        self.beside = fuse

    async def run_group(self, task, *, group_id: str, **kwargs):  # type: ignore[no-untyped-def]
        self.beside.evaluates |= group_id.startswith("eval-held-2/")
        if self.beside.evaluates:
            await asyncio.sleep(600)
        return await super().run_group(task, group_id=group_id, **kwargs)


async def test_a_lost_rank_does_not_say_that_a_score_is_missing(tmp_path: Path) -> None:
    """Fails if the user is told so of a score that the restart makes."""
    config = fake_config(tmp_path, schedule=AHEAD["staleness 1"], engine="vllm")
    progress = Notes()
    fuse = Beside(RankLost("trainer rank 1 is gone"))
    with pytest.raises(RankLost):
        await drive(config, fuse=fuse, worker=Stuck(fuse), progress=progress)
    assert not [text for text in progress.notes if "missing" in text]
    assert not names_in_flight()
    await drive(config, worker=StreamingWorker(Fuse()))
    assert 2 in [line["step"] for line in lines(config) if "eval/held/score" in line]


@pytest.mark.parametrize(("again_after", "missing"), [(None, 1), (1, 0), (2, 1), (3, 1)])
async def test_only_a_score_that_is_not_made_again_is_missing(
    again_after: int | None, missing: int
) -> None:
    async def endless(step: int) -> dict[str, float]:
        await asyncio.Event().wait()
        return {}

    async def scored(step: int, scores: dict[str, float]) -> None: ...

    progress = Notes()
    evaluation = EvaluationBeside(endless, scored=scored, stop=StopSwitch(), progress=progress)
    evaluation.start(2)
    await asyncio.sleep(0)
    await evaluation.close(again_after=again_after)
    assert len(progress.notes) == missing


async def test_groups_are_closed_though_the_evaluation_does_not_close() -> None:
    """Fails if an error there leaves sandboxes of rollouts behind."""
    closed: list[str] = []

    async def close_evaluation(*, again_after: int | None) -> None:
        raise RuntimeError("a broken invariant")

    async def close_groups() -> None:
        closed.append("groups")

    run = SimpleNamespace(
        _parts=SimpleNamespace(pending=SimpleNamespace(add_stage_counts=list)),
        _evaluation=SimpleNamespace(close=close_evaluation),
        _rollouter=SimpleNamespace(close=close_groups),
    )
    with pytest.raises(RuntimeError, match="a broken invariant"):
        await AsynchronousRun._close_in_flight(cast(AsynchronousRun, run), None)
    assert closed == ["groups"]


async def test_an_evaluation_that_fails_ends_the_run(tmp_path: Path) -> None:
    class Broken(StreamingWorker):
        async def run_group(self, task, *, group_id: str, **kwargs):  # type: ignore[no-untyped-def]
            if group_id.startswith("eval-held-2/"):
                raise RuntimeError("a broken invariant")
            return await super().run_group(task, group_id=group_id, **kwargs)

    config = fake_config(tmp_path, schedule=AHEAD["staleness 1"], engine="vllm")
    with pytest.raises(RuntimeError, match="a broken invariant"):
        await drive(config, worker=Broken(Fuse()))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, ""),
        ({"shares_weights": True}, "the engines sample from the tensors that training changes"),
        ({"keep_best": 1}, "checkpoint.keep_best saves a step by its score"),
        ({"rules_of_scores": True}, "a rule of health.rules decides by a score"),
    ],
)
def test_reasons_to_stop_training_for_an_evaluation(settings: dict[str, Any], why: str) -> None:
    found = why_training_stops(
        CheckpointSection(keep_best=settings.get("keep_best", 0)),
        shares_weights=settings.get("shares_weights", False),
        rules_of_scores=settings.get("rules_of_scores", False),
    )
    assert found.startswith(why)
    assert bool(found) == bool(why)
