"""The reward functions of a config that see all rollouts of a group at once."""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from agentrl.errors import GraderError
from agentrl.reward.other_trainers import NOT_JUDGED
from agentrl.reward.target import RewardTarget, parts_with, read_value, whole_reward
from agentrl.types import RewardValue, Task, Termination, Trajectory
from agentrl.types.explanation import joined


class GroupRewardFunctions:
    """Adds to the reward of each rollout of a group: `sum of weight * function`.

    A function is called once a group as `f(trajectories, task, **args)`, with the last row of each
    rollout that can be trusted, in the order of their index; one that names a parameter `rows` gets
    all rows of each by that name. It gives one value for each of them, in this order. A rollout
    that those in TRL's form give None, and that nothing else pays, ends as `not_judged`.
    """

    def __init__(
        self,
        functions: Sequence[RewardTarget],
        *,
        timeout_s: float,
        judges: Sequence[str] = (),
        env_weight: float = 1.0,
    ) -> None:
        """Take the functions.

        Args:
            functions: those of groups alone.
            timeout_s: limit of one call; the wait in line for a served model does not count.
            judges: names of the functions that judge single rollouts, before.
            env_weight: of the environment's own reward.
        """
        self._functions = tuple(functions)
        self._judges, self._env_weight = frozenset(judges), env_weight
        self.names = frozenset(function.name for function in functions)
        """Their names in `reward.functions`."""
        self.comparing = frozenset(function.name for function in functions if function.compares)
        """Those of them that compare rollouts; the others may judge one that is alone."""
        self._timeout_s = timeout_s

    async def __call__(
        self, task: Task, rollouts: Sequence[Sequence[Trajectory]]
    ) -> list[list[Trajectory]]:
        """The same rollouts with their whole reward and its parts.

        Args:
            task: of the group.
            rollouts: the rows of each rollout whose reward can be trusted; one rollout or more.

        Raises:
            GraderError: a function raised, took too long, or did not return one finite number a
                rollout; or its name is that of a part the environment gives.
        """
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(self._values(function, task, rollouts))
                    for function in self._functions
                ]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        graded: list[list[Trajectory]] = []
        for index, rows in enumerate(rollouts):
            last = rows[-1]
            assert last.reward is not None
            values = {
                function.name: value
                for function, job in zip(self._functions, running, strict=True)
                if (value := job.result()[index]) is not None
            }
            if not (values or self._env_weight or self._judges & last.reward_parts.keys()):
                graded.append(_not_judged(rows, self.names))
                continue
            added = (
                function.weight * values[function.name].value
                for function in self._functions
                if function.name in values
            )
            reward = whole_reward([last.reward, *added], "functions of groups")
            parts = parts_with(last.reward_parts, values)
            given = {name: value.explanation for name, value in values.items()}
            explanation = joined(last.explanation, given)
            graded.append(
                [
                    replace(row, reward=reward, reward_parts=parts, explanation=explanation)
                    for row in rows
                ]
            )
        return graded

    async def _values(
        self, function: RewardTarget, task: Task, rollouts: Sequence[Sequence[Trajectory]]
    ) -> list[RewardValue | None]:
        shown = tuple(rows[-1] for rows in rollouts)
        all_rows = tuple(tuple(rows) for rows in rollouts)
        given = await function.ask(shown, task, all_rows, timeout_s=self._timeout_s)
        return [
            None
            if value is NOT_JUDGED
            else read_value(value, f"{function.where} for rollout {index} of {len(shown)}")
            for index, value in enumerate(_one_each(given, len(shown), function.where), start=1)
        ]


def _not_judged(rows: Sequence[Trajectory], names: Iterable[str]) -> list[Trajectory]:
    """The rows of a rollout that no function judges, where nothing else pays it."""
    why = (
        f"reward.functions ({', '.join(sorted(names))}) returned None, and reward.env_weight is 0; "
        "a rollout that no function judges has no reward"
    )
    ending = Termination.NOT_JUDGED
    return [
        replace(row, reward=None, score=None, termination=ending, termination_detail=why)
        for row in rows
    ]


def _one_each(given: Any, count: int, where: str) -> list[Any]:
    """The values as a list of the right length; a text or a mapping is none."""
    try:
        values = None if isinstance(given, (str, bytes, dict, set)) else list(given)
    except TypeError:
        values = None
    if values is None or len(values) != count:
        got = reprlib.repr(given) if values is None else f"{len(values)} values"
        raise GraderError(
            f"{where} returned {got} for {count} rollouts, expected a sequence of one number each"
        )
    return values
