"""Detectors beside a run: what they find is said once, and they are never in its way."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig
from agentrl.config.health import HealthSection
from agentrl.health.journal import HealthJournal
from agentrl.health.records import Verdict
from agentrl.health.watch import RunWatch
from agentrl.runtime.progress import Progress
from agentrl.types import Trajectory
from agentrl.types.finding import Status
from tests.runtime.driver_fakes import FakeWorker, Fuse, drive, fake_config

STEPS = 16


class Notes(Progress):
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.looks: list[Sequence[Verdict]] = []

    def note(self, text: str) -> None:
        self.texts.append(text)

    def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        self.looks.append(verdicts)


class Equal(FakeWorker):
    """Every rollout earns the same, so that no step teaches anything."""

    def make_row(self, task: Any, group_id: str, index: int, seed: int) -> Trajectory:
        return replace(super().make_row(task, group_id, index, seed), reward=1.0, score=1.0)


def watched(tmp_path: Path, **health: Any) -> RunConfig:
    config = fake_config(tmp_path, steps=STEPS)
    return config.model_copy(update={"health": HealthSection(**health)})


def found(verdicts: Sequence[Verdict]) -> dict[str, Status]:
    return {v.name: v.status for v in verdicts if v.status in (Status.WARN, Status.FAIL)}


async def test_what_is_found_is_said_once_and_kept(tmp_path: Path) -> None:
    """Fails if the last steps are never looked at, or a resume says everything again."""
    config, notes = watched(tmp_path), Notes()
    result, _ = await drive(config, worker=Equal(Fuse()), progress=notes)
    assert result.steps == STEPS  # verdicts never end a run
    assert "empty_gradient" in found(notes.looks[-1])
    journal = HealthJournal(result.run_dir / "health.jsonl")
    events = [event for event in journal.read() if event.detector == "empty_gradient"]
    assert len({event.status for event in events}) == len(events) > 0
    said = [text for text in notes.texts if events[-1].text in text]
    assert len(said) == 1
    assert f"agentrl doctor {result.run_dir}" in said[0]
    again = Notes()
    await drive(config, progress=again)
    assert not [text for text in again.texts if "health" in text]


async def test_a_run_that_is_well_is_told_nothing(tmp_path: Path) -> None:
    notes = Notes()
    await drive(watched(tmp_path), progress=notes)
    assert not [text for text in notes.texts if "health" in text], notes.texts
    assert notes.looks


async def test_off_is_off(tmp_path: Path) -> None:
    notes = Notes()
    result, _ = await drive(
        watched(tmp_path, thresholds=False), worker=Equal(Fuse()), progress=notes
    )
    assert notes.looks == []
    assert not (result.run_dir / "health.jsonl").exists()


async def test_a_view_that_fails_ends_the_watching_and_not_the_run(tmp_path: Path) -> None:
    class Broken(Notes):
        def verdicts(self, verdicts: Sequence[Verdict]) -> None:
            raise RuntimeError("no such screen")

    notes = Broken()
    result, _ = await drive(watched(tmp_path), progress=notes)
    assert result.steps == STEPS
    assert sum("RuntimeError: no such screen" in text for text in notes.texts) == 1


async def test_a_run_whose_trajectories_are_damaged_is_still_watched(tmp_path: Path) -> None:
    class Vandal(Notes):
        def step_done(self, step: int, metrics: Any) -> None:
            file = tmp_path / "fake" / "trajectories" / "train" / f"step_{step:06d}.parquet"
            file.write_bytes(b"PAR1 not a parquet file")

    notes = Vandal()
    result, _ = await drive(watched(tmp_path), worker=Equal(Fuse()), progress=notes)
    assert result.steps == STEPS
    assert "empty_gradient" in found(notes.looks[-1])


async def test_looks_take_no_more_than_a_hundredth_of_the_time(tmp_path: Path) -> None:
    """Fails if every step is looked at, whatever that costs."""
    notes = Notes()
    await drive(watched(tmp_path), progress=notes)
    # Steps of the fakes take milliseconds, a look some tens: the first, and the one at the end.
    assert 1 <= len(notes.looks) <= 3


def test_the_first_the_latest_and_some_between_stay(tmp_path: Path) -> None:
    watch = RunWatch({})
    for step in range(1, 101):
        assert not watch.has("train", step)
        watch.keep("train", step, [])
        watch.see(step, {"reward": 0.5})
    kept = sorted(step for _, step in watch._rollouts)
    assert kept[:4] == [1, 2, 3, 4]
    assert kept[-6:] == list(range(95, 101))
    assert len(kept) == 16


def test_only_news_are_news() -> None:
    """Equal rewards are found once; what an earlier process said is not news."""
    watch = RunWatch({})
    for step in range(1, 40):
        watch.see(step, {"frac_reward_zero_std": 1.0, "reward": 0.0, "reward_std": 0.0})
    first = watch.look()
    assert "empty_gradient" in found(first.changed)
    assert watch.look().changed == ()
    said = {verdict.name: verdict.status.value for verdict in first.verdicts}
    other = RunWatch({}, said=said)
    for step in range(1, 40):
        other.see(step, {"frac_reward_zero_std": 1.0, "reward": 0.0, "reward_std": 0.0})
    assert other.look().changed == ()
    for step in range(40, 90):
        other.see(step, {"frac_reward_zero_std": 0.1, "reward": 0.5, "reward_std": 0.3})
    changed = {verdict.name: verdict.status for verdict in other.look().changed}
    assert changed.get("empty_gradient") is Status.OK
