"""The reward functions of a config: called once a rollout or a group, where and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentrl.config.schema import RewardSection
from agentrl.reward.group_functions import GroupRewardFunctions
from agentrl.reward.target import (
    ENV_PART,
    RewardTarget,
    load_target,
    parts_with,
    read_value,
    whole_reward,
)
from agentrl.types import RewardValue, Task, Trajectory
from agentrl.types.explanation import joined, later, read_explanation, reference_of


def load_reward_functions(
    section: RewardSection,
    *,
    base: Path | None,
    timeout_s: float,
    models: Sequence[RewardTarget] = (),
) -> RewardFunctions | None:
    """The functions of a config, resolved now; None if the environment's reward is all there is.

    Args:
        section: names them.
        base: folder that relative files start from.
        timeout_s: limit of one call; the wait in line for a model does not count.
        models: those of `section.models`, opened; without them the reward is that of the rest.

    Raises:
        ConfigError: an import string that does not resolve, or a signature that does not fit.
    """
    if not section.functions and not models and section.env_weight == 1.0:
        return None
    targets = [load_target(name, item, base=base) for name, item in section.functions.items()]
    targets += models
    of_groups = [target for target in targets if target.of_group]
    alone = [target for target in targets if not target.of_group]
    return RewardFunctions(
        alone,
        group=GroupRewardFunctions(
            of_groups,
            timeout_s=timeout_s,
            judges=[target.name for target in alone],
            env_weight=section.env_weight,
        )
        if of_groups
        else None,
        env_weight=section.env_weight,
        timeout_s=timeout_s,
    )


class RewardFunctions:
    """Scores finished rollouts: `env_weight * environment + sum of weight * function`.

    A function is called as `f(trajectory, task, **args)` with the last row of the rollout, whose
    ids hold the whole conversation unless it was rewritten; one that names a parameter `rows` gets
    all rows by that name. Functions for verl, TRL or OpenRLHF are called as these call them
    (`other_trainers`). Plain functions run in threads, several at once. A function with an
    attribute `check_args` has it called with its `args` before anything runs. Those whose first
    parameter is called `trajectories`, and those for TRL, wait until their group is complete, and
    are in `group`.
    """

    def __init__(
        self,
        functions: Sequence[RewardTarget],
        *,
        group: GroupRewardFunctions | None = None,
        env_weight: float,
        timeout_s: float,
    ) -> None:
        self._functions = tuple(functions)
        self.group = group
        """Functions of whole groups, which are called later; None if there are none."""
        self._env_weight = env_weight
        self._timeout_s = timeout_s

    async def __call__(self, task: Task, rows: Sequence[Trajectory]) -> list[Trajectory]:
        """The rows with the reward of this rollout and its parts.

        `score` stays what the environment said. A label that is text or numbers is the reference of
        the explanation, unless the environment or a function explains more. Functions of `group`
        are not in it yet.

        Args:
            task: of the rollout.
            rows: of one rollout whose reward can be trusted.

        Raises:
            GraderError: a function raised, took too long or returned no finite number; or its name
                is that of a part the environment gives.
        """
        last = rows[-1]
        assert last.reward is not None
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(self._value(function, task, rows))
                    for function in self._functions
                ]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        judged = [(f, job.result()) for f, job in zip(self._functions, running, strict=True)]
        values = {function.name: value for function, value in judged}
        parts = parts_with(last.reward_parts, {ENV_PART: RewardValue(value=last.reward), **values})
        reward = whole_reward(
            [
                self._env_weight * last.reward,
                *(function.weight * value.value for function, value in judged),
            ],
            "env_weight and reward.functions",
        )
        given = {name: value.explanation for name, value in values.items()}
        explanation = joined(last.explanation, given)
        if values and not (explanation and (explanation.reference or explanation.tests)):
            # Functions grade by the label; an environment that does knows better what it is.
            explanation = later(
                explanation, read_explanation({"reference": reference_of(task.label)})
            )
        return [
            replace(row, reward=reward, reward_parts=parts, explanation=explanation) for row in rows
        ]

    async def _value(
        self, function: RewardTarget, task: Task, rows: Sequence[Trajectory]
    ) -> RewardValue:
        value = await function.ask(rows[-1], task, tuple(rows), timeout_s=self._timeout_s)
        return read_value(value, function.where)
