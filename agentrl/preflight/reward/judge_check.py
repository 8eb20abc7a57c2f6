"""Runs a reward function of a run file on answers that people have labelled."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.config.plan import RewardPlan
from agentrl.config.reward import RewardFunction, RewardSection
from agentrl.config.schema import DatasetSection
from agentrl.data.messages import messages_of
from agentrl.data.tasks.load import load_tasks
from agentrl.data.tasks.rows import value_at
from agentrl.errors import ConfigError, DataError, GraderError, choices
from agentrl.judges.agreement import LabelledCase
from agentrl.reward import RewardFunctions, load_reward_functions
from agentrl.types import Task, Termination, Trajectory, Turn
from agentrl.types.usage import counting_served

_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledAnswers:
    """Source of labelled answers: rows with a prompt, an answer to it, and a label."""

    source: str
    """As `dataset.source`."""
    split: str = "train"
    """Split to take, where the source has splits."""
    prompt: str = "prompt"
    """Column of the prompt."""
    response: str = "response"
    """Column of the answer: text, or the messages after the prompt."""
    label: str = "score"
    """Column of the label: a number, true or false."""
    reference: str = "label"
    """Column of what a task calls its label, which the function may see."""
    low: float = 0.0
    """Worst label."""
    high: float = 1.0
    """Best label."""
    limit: int | None = None
    """Read only the first so many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAnswers:
    """The cases that have a score, and what became of the others."""

    function: str
    """Name of the reward function."""
    cases: tuple[LabelledCase, ...]
    """Label and score of each answer."""
    failures: tuple[str, ...]
    """Reasons of answers that could not be scored, one each."""
    spent: dict[str, float]
    """Use of served models, by the names of `agentrl.types.usage.SERVED`."""


async def judge_answers(
    rewards: RewardPlan,
    answers: LabelledAnswers,
    *,
    function: str | None = None,
    fresh: bool = False,
    done: Callable[[int, int], None] = lambda done, all: None,
) -> JudgedAnswers:
    """Score all labelled answers with one reward function of a run file.

    A function of groups is given all answers to one prompt as a group.

    Args:
        rewards: of the run file.
        answers: where they are.
        function: its name in `reward.functions`; None takes the only one.
        fresh: leave the cache of its served model alone, which would hide that it has changed.
        done: called with the number of answers that are done, and of all.

    Raises:
        ConfigError: no such function, or one that cannot be loaded.
        DataError: the answers cannot be read.
    """
    name = chosen_function(rewards.reward, function)
    grade = load_judge(rewards, name, fresh=fresh)
    tasks = load_tasks(_section(answers), base=rewards.base)
    labelled = [_LabelledRow.of(task, answers) for task in tasks]
    groups = _groups(labelled) if grade.group is not None else [[row] for row in labelled]
    places = asyncio.Semaphore(_AT_ONCE)
    results: list[LabelledCase | str] = []

    async def score(group: Sequence[_LabelledRow]) -> None:
        async with places:
            results.extend(await _scored(grade, group))
        done(len(results), len(tasks))

    with counting_served() as spent:
        async with asyncio.TaskGroup() as running:
            for group in groups:
                running.create_task(score(group))
    return JudgedAnswers(
        function=name,
        cases=tuple(item for item in results if isinstance(item, LabelledCase)),
        failures=tuple(item for item in results if isinstance(item, str)),
        spent=spent,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LabelledRow:
    task: Task
    row: Trajectory
    """The answer as a finished rollout without tokens."""
    label: float
    """In [0, 1]."""

    @classmethod
    def of(cls, task: Task, answers: LabelledAnswers) -> _LabelledRow:
        row, label = _labelled(task, answers)
        return cls(task=task, row=row, label=label)

    @property
    def prompt(self) -> str:
        return repr(self.task.prompt)

    def case(self, score: float) -> LabelledCase:
        said = [(turn.role, turn.text) for turn in self.row.turns]
        key = hashlib.sha256(json.dumps([self.prompt, said]).encode()).hexdigest()
        return LabelledCase(key=key, cluster=self.prompt, label=self.label, score=score)


def _groups(rows: Sequence[_LabelledRow]) -> list[list[_LabelledRow]]:
    by_prompt: dict[str, list[_LabelledRow]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt, []).append(row)
    return list(by_prompt.values())


async def _scored(
    grade: RewardFunctions, group: Sequence[_LabelledRow]
) -> list[LabelledCase | str]:
    task = group[0].task
    try:
        rollouts = [await grade(task, [one.row]) for one in group]
        if grade.group is not None:
            rollouts = await grade.group(task, rollouts)
    except GraderError as error:
        return [f"{one.task.id}: {error}" for one in group]
    scores = [rows[-1].reward for rows in rollouts]
    assert None not in scores  # what was given had one
    return [one.case(score) for one, score in zip(group, scores, strict=True) if score is not None]


def _without_cache(item: RewardFunction) -> RewardFunction:
    """The function with a served model that is asked whatever it has answered before."""
    model = item.args.get("model")
    if not isinstance(model, Mapping):
        return item
    asked = {key: value for key, value in model.items() if key != "cache"}
    return item.model_copy(update={"args": {**item.args, "model": asked}})


def load_judge(rewards: RewardPlan, name: str, *, fresh: bool = False) -> RewardFunctions:
    """One reward function alone, without its weight.

    Args:
        rewards: of the run file.
        name: in `reward.functions`.
        fresh: leave the cache of its served model alone.

    Raises:
        ConfigError: it cannot be loaded.
    """
    item = rewards.reward.functions[name].model_copy(update={"weight": 1.0})
    grade = load_reward_functions(
        RewardSection(functions={name: _without_cache(item) if fresh else item}, env_weight=0.0),
        base=rewards.base,
        timeout_s=rewards.rollout.env_timeout_s,
    )
    assert grade is not None
    return grade


def chosen_function(section: RewardSection, name: str | None) -> str:
    """The name in `reward.functions` that is meant.

    Args:
        section: `reward` of the run.
        name: None takes the only one.

    Raises:
        ConfigError: there is none of this name, or several and none is named.
    """
    functions = section.functions
    if name is None and len(functions) == 1:
        return next(iter(functions))
    if name is None or name not in functions:
        where = "reward.functions" if functions else "the run file has no reward.functions"
        raise ConfigError(f"{where}: {choices(name or '', functions)}; name one with --function")
    return name


def _section(answers: LabelledAnswers) -> DatasetSection:
    return DatasetSection(
        source=answers.source,
        split=answers.split,
        columns={"prompt": answers.prompt}
        | ({"label": answers.reference} if answers.reference != "label" else {}),
        limit=answers.limit,
    )


def _labelled(task: Task, answers: LabelledAnswers) -> tuple[Trajectory, float]:
    """An answer as a finished rollout without tokens, and its label in [0, 1]."""
    where = f"labelled answer {task.id}"
    values = {name: value_at(task.metadata, name) for name in (answers.response, answers.label)}
    for name, value in values.items():
        if not isinstance(value, (str, int, float, list)):
            raise DataError(f"{where}: no column {choices(name, task.metadata)}")
    label = _number(values[answers.label])
    if label is None or not answers.low <= label <= answers.high:
        raise DataError(
            f"{where}: the label is {values[answers.label]!r}, expected a number from "
            f"{answers.low:g} to {answers.high:g}; --range says what labels lie between"
        )
    said = values[answers.response]
    turns = (
        [("assistant", str(said))]
        if not isinstance(said, list)
        else [(m.role, m.content) for m in messages_of(where, said, answers.response)]
    )
    return _rollout(task, turns), (label - answers.low) / (answers.high - answers.low)


def _rollout(task: Task, turns: Sequence[tuple[Any, str]]) -> Trajectory:
    return Trajectory(
        task_id=task.id,
        group_id=task.id,
        rollout_id=task.id,
        prompt_ids=(),
        response_ids=(),
        response_mask=(),
        rollout_log_probs=(),
        policy_versions=(),
        turns=tuple(Turn(role=role, start=0, end=0, text=text) for role, text in turns),
        prompt_text=task.prompt if isinstance(task.prompt, str) else "",
        reward=0.0,
        termination=Termination.ENV_DONE,
    )


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
