"""The environment of a run file without one: the prompt of the task, and one answer.

    dataset: {source: rows.jsonl}
    reward: {functions: {right: my.py:reward}}

It pays nothing itself: `reward.functions` and `reward.models` do. Where `env.tools` offers tools,
turns that call them go on, and the first turn without a call is the answer.
"""

from __future__ import annotations

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.types import Task


class SingleTurn(AgentInstance):
    """Shows the prompt of a task and ends with the first turn that calls no tool."""

    async def reset(self, task: Task) -> Observation:
        """Show the prompt as it is."""
        return Observation(content=task.prompt)

    async def step(self, action: Action) -> StepResult:
        """Go on behind tool calls; anything else is the answer."""
        calls = bool(self.context.tools and action.tool_calls)
        return StepResult(done=not calls or action.last)
