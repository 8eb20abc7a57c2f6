"""Answers to pauses, and what stands in the files of a rule that nobody has written there."""

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentrl.disk.pause import Pause, PauseState, answer, read_pause, write_pause
from agentrl.disk.rollback import RollbackPlan, begin_rollback, read_rollbacks
from agentrl.errors import RunError
from agentrl.runtime import launch
from agentrl.runtime.progress import Progress
from tests.runtime.driver_fakes import FakeWorker, Killed, drive
from tests.runtime.health.test_rules import (
    LOW,
    Notes,
    answered,
    events,
    poor,
    ruled,
    run_of,
    steps_from,
)


async def test_an_answer_is_for_one_rule(tmp_path: Path) -> None:
    """Fails if the second rule that pauses a step takes the answer to the first."""
    config = ruled(tmp_path, f"{LOW} -> pause", "reward < 100 for 4 steps -> pause", steps=4)
    worker = poor(FakeWorker, steps_from(3))

    class Second(Notes):
        def phase(self, name: str, total: int = 0) -> None:
            super().phase(name)
            if self.phases.count("paused") == 2:
                raise Killed(name)

    notes = Second()
    with pytest.raises(Killed):
        await answered(config, PauseState.CONTINUE, worker=worker, progress=notes)
    assert read_pause(run_of(config) / "control") is None
    assert [event.action for event in events(config)] == ["pause", "continue", "pause"]


async def test_a_stop_by_hand_outlives_a_kill(tmp_path: Path) -> None:
    """Fails if the run that comes back waits for the answer that it was given."""
    config = ruled(tmp_path, f"{LOW} -> pause")
    evaluation = config.eval.model_copy(update={"every_steps": 0})
    config = config.model_copy(update={"eval": evaluation})

    class Dies(Progress):
        def phase(self, name: str, total: int = 0) -> None:
            if name == "eval held" and any(event.action == "stop" for event in events(config)):
                raise Killed(name)

    worker = poor(FakeWorker, steps_from(3))
    with pytest.raises(Killed):
        await answered(config, PauseState.STOP, worker=worker, progress=Dies())
    notes = Notes()
    result, _ = await asyncio.wait_for(drive(config, progress=notes), 120)
    assert (result.steps, "stopped by hand" in result.reason) == (4, True)
    assert "paused" not in notes.phases


@pytest.mark.parametrize("text", ['{"state": "stop", "step": 1e999, "why": ""}', "[]", "{"])
def test_what_is_no_pause_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "control").write_text(text)
    assert read_pause(tmp_path / "control") is None


def test_the_first_of_many_answers_stands(tmp_path: Path) -> None:
    """Fails if two at once tear the file, or if both are told that they were heard."""
    (tmp_path / "config.yaml").touch()
    path, states = tmp_path / "control", (PauseState.CONTINUE, PauseState.STOP)

    def ask(state: PauseState) -> PauseState | None:
        try:
            answer(tmp_path, state)
        except RunError:
            return None
        return state

    with ThreadPoolExecutor(8) as pool:
        for step in range(20):
            write_pause(path, Pause(state=PauseState.PAUSED, step=step, why="rule"))
            heard = {state for state in pool.map(ask, states * 4) if state}
            pause = read_pause(path)
            assert pause is not None
            assert heard == {pause.state}
    late = PauseState.STOP if pause.state is PauseState.CONTINUE else PauseState.CONTINUE
    with pytest.raises(RunError, match=f"was told to {pause.state} after step 19 already"):
        answer(tmp_path, late)


PLAN = RollbackPlan(step=5, to=2, why="rule", cursor={}, elapsed_s=1.0)


def test_a_folder_that_is_no_number_is_not_a_rollback(tmp_path: Path) -> None:
    (tmp_path / "rolled-back" / "\N{SUPERSCRIPT TWO}").mkdir(parents=True)
    begin_rollback(tmp_path, PLAN)
    assert read_rollbacks(tmp_path).count == 0
    assert (tmp_path / "rolled-back" / "1" / "plan.json").is_file()


def test_a_rollback_that_the_disk_does_not_take_says_how_it_goes_on(tmp_path: Path) -> None:
    """Fails if it ends as a defect, with a traceback, although a resume is all it needs."""
    (tmp_path / "rolled-back").write_text("no folder")
    guard: Any = launch._rolling_back(tmp_path)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(RunError, match="--resume carries it out") as raised, guard:
        begin_rollback(tmp_path, PLAN)
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno in (errno.EEXIST, errno.ENOTDIR)
