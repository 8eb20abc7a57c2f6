"""A run directory with stored rollouts and no engine, a child that trains nothing, and users."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig, load_config
from agentrl.config.plan import plan_run
from agentrl.data import TrajectoryStore
from agentrl.fit.refresh.places import RefreshPlaces
from agentrl.fit.refresh.records import RefreshBook
from agentrl.fit.refresh.reward_refresh import ModelRefresh
from agentrl.fit.reward_models.versions import UsedRewardModel
from agentrl.machine.processes.stop import StopSwitch
from agentrl.reward.scale import RewardScale
from agentrl.runtime.progress import Progress
from agentrl.types import Task, Termination, Trajectory, TrajectoryGroup, Turn
from tests.runtime.reward_checkpoints import write_reward_model
from tests.runtime.tiny_project import write_project

TASKS = [Task(id=f"train-{i}", prompt=f"say {i}") for i in range(12)]
FAKE_FIT = f"{Path(__file__).with_name('fake_fit.py')}:serve"
LABELS = """
def first_id(task, a, b):
    return 0.9 if a.response_ids[0] > b.response_ids[0] else 0.1


def broken(task, a, b):
    raise ValueError("no opinion at all")
"""


@dataclass
class Notes(Progress):
    """Everything that the user was told."""

    said: list[str] = field(default_factory=list[str])

    def note(self, text: str) -> None:
        self.said.append(text)

    @property
    def text(self) -> str:
        return "\n".join(self.said)


@dataclass
class Users:
    """Processes that score: what they were told, and a version that they cannot load."""

    used: list[UsedRewardModel] = field(default_factory=list[UsedRewardModel])
    refused: tuple[int, ...] = ()

    async def use_reward_model(self, used: UsedRewardModel) -> None:
        self.used.append(used)
        if used.version in self.refused:
            # As torch says it: no error of ours.
            raise RuntimeError("it does not fit into memory")

    @property
    def versions(self) -> list[int]:
        return [each.version for each in self.used]


def rollout(
    task: str, number: int, ids: Sequence[int], *, step: int = 1, env: float = 0.0, **fields: Any
) -> Trajectory:
    """A rollout of one row; the same prompt for all of a task."""
    group = f"step-{step}/{task}"
    size = len(ids)
    values: dict[str, Any] = {
        "task_id": task,
        "group_id": group,
        "rollout_id": f"{group}/{number}",
        "prompt_ids": (1, 2, int(task.split("-")[-1]) + 3),
        "response_ids": tuple(ids),
        "response_mask": (1,) * size,
        "rollout_log_probs": (-0.5,) * size,
        "policy_versions": (step - 1,) * size,
        "turns": (Turn(role="assistant", start=0, end=size, text=f"answer {number}"),),
        "reward": env,
        "reward_parts": {"env": env, "rm": 0.0, "rm/rm_version": 0.0},
        "termination": Termination.ENV_DONE,
    }
    return Trajectory(**{**values, **fields})


def group_of(task: str, rows: Sequence[Trajectory]) -> TrajectoryGroup:
    return TrajectoryGroup(group_id=rows[0].group_id, task_id=task, trajectories=tuple(rows))


def groups_of(step: int, *, tasks: int = 3, samples: int = 4) -> list[TrajectoryGroup]:
    """Groups of the tasks of a step, whose answers begin with different ids."""
    draw = random.Random(step)
    found = []
    for at in range(tasks):
        task = f"train-{((step - 1) * tasks + at) % 12}"
        firsts = draw.sample(range(20, 200), samples)
        rows = [
            rollout(task, i, (first, 7, 9), step=step, env=float(first))
            for i, first in enumerate(firsts)
        ]
        found.append(group_of(task, rows))
    return found


@dataclass
class RefreshRun:
    """One run directory; `again` is what the next process sees."""

    path: Path
    config: RunConfig
    store: TrajectoryStore
    users: Users = field(default_factory=Users)
    notes: Notes = field(default_factory=Notes)

    def refresh(self) -> ModelRefresh:
        plan = plan_run(self.config, self.path.parent.parent).schedule
        places = RefreshPlaces(run=self.path, store=self.store, tasks=TASKS, users=self.users)
        return ModelRefresh(plan, places, progress=self.notes, stop=StopSwitch(), target=FAKE_FIT)

    @property
    def book(self) -> RefreshBook:
        return RefreshBook(self.path, "rm")

    def roll_out(self, *steps: int) -> None:
        for step in steps:
            self.store.write(step, "train", groups_of(step), None)

    def behave(self, before: float = 0.5, after: float = 0.6, do: str = "") -> None:
        """Say what the child measures, or how it fails: `error`, `die` or `hang`."""
        document = {"before": before, "after": after, "do": do}
        (self.path.parent.parent / "behaviour.json").write_text(json.dumps(document))

    def asked(self) -> list[dict[str, Any]]:
        """The jobs that children were given."""
        file = self.path.parent.parent / "jobs.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def refresh_section(**section: Any) -> dict[str, Any]:
    return {
        "every_steps": 2, "labeller": "labels.py:first_id", "old_pairs": "none", "held_out": 0.4,
        **section,
    }  # fmt: skip


def write_refresh_project(folder: Path, *, reward: Any = None, **changes: Any) -> Path:
    """A project with a reward model `rm` that is refreshed after every second step."""
    section = changes.pop("refresh", refresh_section())
    path = write_project(
        folder,
        reward={"models": {"rm": "rm"}, "refresh": section, **(reward or {})},
        **{"train__steps": 6, **changes},
    )
    if not (folder / "rm").exists():
        write_reward_model(folder / "rm", folder / "model", scale=RewardScale(std=2.0))
    (folder / "labels.py").write_text(LABELS)
    return path


def refresh_run(folder: Path, **changes: Any) -> RefreshRun:
    """A run of such a project with two stored steps."""
    config = load_config(write_refresh_project(folder, **changes))
    path = folder / "runs" / "tiny"
    path.mkdir(parents=True, exist_ok=True)
    run = RefreshRun(path=path, config=config, store=TrajectoryStore(path / "trajectories"))
    run.roll_out(1, 2)
    run.behave()
    return run
