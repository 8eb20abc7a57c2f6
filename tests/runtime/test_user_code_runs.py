"""Runs of which many rollouts misbehave at once: they end, and the others are unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from agentrl.data import TrajectoryStore
from agentrl.types import Termination
from tests.rollout.user_code import misbehaviour
from tests.rollout.user_code.misbehaviour import WAYS
from tests.runtime.tiny_project import agentrl, write_project

pytestmark = pytest.mark.slow

ENV = '''
"""The first rollout of each task does what the task names, in the place that it names."""

from agentrl import AgentInstance, Observation, StepResult

import misbehaviour


class Odd(AgentInstance):
    def __init__(self, odd=True):
        self.odd = odd

    def _at(self, place):
        _, _, index = self.context.rollout_id.rpartition("/")
        if not self.odd or index != "0" or self.task.metadata["place"] != place:
            return None
        return misbehaviour.WAYS[self.task.metadata["way"]]()

    async def reset(self, task):
        self.task = task
        self._at("reset")
        return Observation(content=str(task.prompt))

    async def step(self, action):
        given = self._at("step")
        return StepResult(rewards=len(action.text) if given is None else given, done=True)

    async def close(self):
        self._at("close")


def reward(trajectory, task, odd=True):
    first = trajectory.rollout_id.endswith("/0")
    if not odd or not first or task.metadata["place"] != "reward":
        return 1.0
    given = misbehaviour.WAYS[task.metadata["way"]]()
    return 1.0 if given is None else given


def tasks(split="train"):
    from agentrl.types import Task

    places = ["reset", "step", "close", "reward"]
    ways = list(misbehaviour.WAYS)
    return [
        Task(id=f"{place}-{way}", prompt=f"say {way}", label="", split=split,
             metadata={"place": place, "way": way})
        for place in places for way in ways
    ]
'''
PLACES = 4
SCHEDULES: dict[str, tuple[str, dict[str, Any]]] = {
    "train": ("train", {}),
    "asynchronous": (
        "train",
        {"schedule__staleness_threshold": 1.0, "schedule__partial_rollout": True},
    ),
    "rollout": ("rollout", {}),
    "eval": ("eval", {}),
}


def ran(folder: Path, schedule: str, *, odd: bool) -> tuple[str, dict[str, Any]]:
    """What a run printed and logged, and its rollouts by task and place in the group."""
    command, changes = SCHEDULES[schedule]
    path = write_project(
        folder,
        env={"target": "odd.py:Odd", "args": {"odd": odd}},
        dataset={"source": "odd.py:tasks"},
        reward={"functions": {"f": {"target": "odd.py:reward", "args": {"odd": odd}}}},
        rollout__prompts_per_step=PLACES * len(WAYS),
        rollout__n_samples_per_prompt=2,
        rollout__max_assistant_turns=1,
        rollout__env_timeout_s=2.0,
        rollout__retries=0,
        train__steps=1,
        eval={},
        **changes,
    )
    (folder / "odd.py").write_text(ENV)
    shutil.copy(misbehaviour.__file__, folder / "misbehaviour.py")
    number = {"rollout": ("--limit", PLACES * len(WAYS)), "eval": ("--n", 2)}
    words = [path, *number.get(command, ())]
    status, text = agentrl(folder / "out.txt", command, *words)
    assert status == 0, text[-3000:]
    (run,) = (folder / "runs").iterdir()
    store = TrajectoryStore(run / "trajectories")
    rows = {
        (row.trajectory.task_id, row.trajectory.rollout_id.rpartition("/")[2]): row.trajectory
        for row in store.read("eval/dataset" if command == "eval" else "train")
    }
    log = run / "run.log"
    return text + (log.read_text() if log.exists() else ""), rows


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_full_of_them_ends(tmp_path: Path, schedule: str) -> None:
    """Fails if a way ends the run, changes another rollout, or is not named in the log."""
    _, clean = ran(tmp_path / "clean", schedule, odd=False)
    log, odd = ran(tmp_path / "odd", schedule, odd=True)
    assert len(clean) == 2 * PLACES * len(WAYS)
    others = {key for key in clean if key[1] != "0"}
    for key in others:
        one, other = clean[key], odd[key]
        assert (one.response_ids, one.reward) == (other.response_ids, other.reward), key
    lost = {key for key, row in odd.items() if row.termination is not Termination.ENV_DONE}
    for task_id, _ in lost - {key for key in clean if clean[key].rule.truncated}:
        row = odd[task_id, "0"]
        assert "misbehaviour.py" in row.termination_detail or "odd.py" in row.termination_detail
        assert task_id.partition("-")[2] in log
