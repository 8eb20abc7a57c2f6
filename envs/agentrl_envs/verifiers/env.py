"""Tasks of verifiers 0.4, scored by their own rewards.

    env:
      target: agentrl_envs.verifiers:VerifiersTask
    dataset:
      source: agentrl_envs.verifiers:taskset_tasks
      args: {taskset: gsm8k-v1, n: 500}

The conversation is ours: chat template, tools of the config, the loop. When the model answers
without a tool call, the conversation becomes a verifiers trace and the `@reward` methods of the
task say what it is worth. Traces have messages and finish reasons, but no usage and no tokens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import GraderError
from agentrl.plugins.own_threads import own_thread
from agentrl.types import Task, Termination
from agentrl_envs.verifiers.grader import score

_LABEL = frozenset({"task_class", "config", "data"})


class VerifiersTask(AgentInstance):
    """One task of a verifiers taskset; a turn without a tool call is the answer."""

    needs_label = True

    async def reset(self, task: Task) -> Observation:
        """Show the model its prompt.

        Raises:
            ValueError: the task is not one of `taskset_tasks`.
        """
        label = task.label
        if not isinstance(label, Mapping) or set(label) != _LABEL:
            raise ValueError(
                f"task {task.id!r}: VerifiersTask needs a label with {', '.join(sorted(_LABEL))}, "
                f"as agentrl_envs.verifiers:taskset_tasks gives, got {type(label).__name__}"
            )
        self._label: Mapping[str, Any] = label
        self._messages: list[dict[str, Any]] = (
            [{"role": "user", "content": task.prompt}]
            if isinstance(task.prompt, str)
            else [{"role": said.role, "content": said.content} for said in task.prompt]
        )
        self._given = len(self._messages)
        return Observation(content=task.prompt)

    async def step(self, action: Action) -> StepResult:
        """Wait while the model calls tools; score the turn in which it does not.

        Raises:
            GraderError: the rewards failed.
        """
        self._messages.append(_assistant(action))
        if action.tool_calls and not action.last:
            self._messages += [
                {"role": "tool", "tool_call_id": found.call_id, "content": found.text}
                for found in action.tool_results
            ]
            return StepResult()
        found = await own_thread(
            score,
            **self._label,
            messages=self._messages,
            prompt_messages=self._given,
            finish_reason="length" if action.truncated else "stop",
        )
        if isinstance(found, Termination):
            return StepResult(done=True, termination=found)
        parts = dict(found["rewards"])
        if not all(math.isfinite(value) for value in parts.values()):
            raise GraderError(f"rewards of {self._label['task_class']} are not finite: {parts}")
        return StepResult(
            rewards=sum(parts.values()),
            done=True,
            reward_parts=parts,
            extra_logs={
                name: value for name, value in found["metrics"].items() if math.isfinite(value)
            },
        )


def _assistant(action: Action) -> dict[str, Any]:
    # Rewards look for answers in `content`; what was only thought is none.
    message: dict[str, Any] = {"role": "assistant", "content": action.text.strip()}
    if action.thought:
        message["reasoning_content"] = action.thought
    if action.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": json.dumps(dict(call.arguments))}
            for call in action.tool_calls
        ]
    return message
