"""Rollouts that are driven by someone else's code instead of `ToolAgentLoop`.

An environment of this kind runs its whole rollout: the worker gives it the parts of the loop, and
takes the same record from it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import EnvError
from agentrl.rollout.records import LoopParts, Rollout
from agentrl.rollout.sandbox import SharedSandbox
from agentrl.rollout.under_way.effort import RunningWork
from agentrl.rollout.under_way.in_flight import Activity
from agentrl.types import SamplingParams, Task


class RolloutLoop(RunningWork, Protocol):
    """Runs one rollout to its end."""

    async def run(self, task: Task) -> Rollout:
        """Run to the end; failures are the ending of the rollout, not exceptions."""
        ...


class OwnLoop(AgentInstance):
    """An environment that drives its rollout itself."""

    @abstractmethod
    def loop(
        self,
        parts: LoopParts,
        *,
        sandbox: SharedSandbox,
        sampling: SamplingParams,
        seed: int,
        session_id: str,
        activity: Activity,
    ) -> RolloutLoop:
        """The loop of one rollout, in place of a `ToolAgentLoop`; arguments as there."""

    async def reset(self, task: Task) -> Observation:
        """The prompt of the task, so that its length can be looked at before a run."""
        return Observation(content=task.prompt)

    async def step(self, action: Action) -> StepResult:
        """Refuse: nothing but the loop of this environment can play it."""
        raise EnvError(
            f"{type(self).__name__} drives its rollout itself, so no turn can be judged from "
            "outside; run it with agentrl train, rollout or eval"
        )
