"""Runs a reward function of a run file on stored rollouts, as a judge that reviews them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentrl.config.plan import RewardPlan, TaskPlan
from agentrl.data.tasks.load import load_tasks
from agentrl.errors import ConfigError, GraderError
from agentrl.preflight.reward.judge_check import chosen_function, load_judge
from agentrl.types import Task, Trajectory

_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRollout:
    """The score that a judge gives a stored rollout."""

    rows: tuple[Trajectory, ...]
    """Its rows, as they are stored."""
    score: float | None
    """Score of the judge; None where it gave none."""
    said: str
    """Its reasons, or why it gave no score."""


def stored_tasks(plan: TaskPlan, kind: str) -> dict[str, Task]:
    """The tasks of a kind of rollouts by id, as the run reads them from its data set.

    Args:
        plan: of the run.
        kind: `train` or `eval/NAME`.

    Raises:
        DataError, ConfigError: the data set cannot be read, or the run file names none.
    """
    name = kind.removeprefix("eval/")
    section = plan.dataset if kind == "train" else plan.evals.get(name)
    if section is None:
        raise ConfigError(
            f"the run file has no eval.datasets.{name}, whose tasks a judge has to see; "
            f"judge rollouts of another kind with --kind"
        )
    return {task.id: task for task in load_tasks(section, base=plan.base)}


async def judge_rollouts(
    rewards: RewardPlan,
    groups: Sequence[Sequence[Sequence[Trajectory]]],
    tasks: Mapping[str, Task],
    *,
    function: str | None = None,
    done: Callable[[int], None] = lambda count: None,
) -> list[JudgedRollout]:
    """Score stored rollouts with one reward function, which sees them as it does in a run.

    Args:
        rewards: with the function.
        groups: rows of each rollout of each group; a function of groups sees a group at once.
        tasks: by id.
        function: its name in `reward.functions`; None takes the only one.
        done: called with the number of rollouts that are judged.

    Raises:
        ConfigError: no such function, or one that cannot be loaded.
    """
    grade = load_judge(rewards, chosen_function(rewards.reward, function))
    places = asyncio.Semaphore(_AT_ONCE)
    units = groups if grade.group is not None else [[rows] for group in groups for rows in group]
    found: list[list[JudgedRollout]] = [[] for _ in units]
    count = 0

    async def judge(index: int, group: Sequence[Sequence[Trajectory]]) -> None:
        nonlocal count
        task = tasks.get(group[0][-1].task_id)
        async with places:
            if task is None:
                why = f"task {group[0][-1].task_id!r} is not in the data set any more"
                found[index] = [_unjudged(rows, why) for rows in group]
            else:
                try:
                    given = [await grade(task, _bare(rows)) for rows in group]
                    if grade.group is not None:
                        given = await grade.group(task, given)
                    found[index] = [_judged(*both) for both in zip(group, given, strict=True)]
                except GraderError as error:
                    found[index] = [_unjudged(rows, str(error)) for rows in group]
        count += len(group)
        done(count)

    async with asyncio.TaskGroup() as running:
        for index, group in enumerate(units):
            running.create_task(judge(index, group))
    return [one for group in found for one in group]


def _bare(rows: Sequence[Trajectory]) -> list[Trajectory]:
    """The rows without the graders' words in the run: a judge judges by itself."""
    return [replace(row, reward=0.0, reward_parts={}, explanation=None) for row in rows]


def _judged(rows: Sequence[Trajectory], given: Sequence[Trajectory]) -> JudgedRollout:
    why = given[-1].explanation
    return JudgedRollout(rows=tuple(rows), score=given[-1].reward, said=why.reason if why else "")


def _unjudged(rows: Sequence[Trajectory], why: str) -> JudgedRollout:
    return JudgedRollout(rows=tuple(rows), score=None, said=why)
