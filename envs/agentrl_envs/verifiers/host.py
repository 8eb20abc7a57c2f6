"""Scores conversations with the rewards of verifiers tasks. Loaded by path, not imported.

Rewards take whatever the model says, and parse it, evaluate formulas in it or ask other models, so
they run in a process of their own that is replaced when it hangs.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any


class VerifiersHost:
    """Task classes by name, and one question."""

    OPERATIONS = ("score",)

    def __init__(self) -> None:
        self._vf = importlib.import_module("verifiers.v1")
        self._state_cls = importlib.import_module("verifiers.v1.state").state_cls
        self._invoke = importlib.import_module("verifiers.v1.utils.decorators").invoke
        # Resolving these imports half of the package; the first question should not pay for it.
        for name in ("Trace", "AgentConfig", "Task"):
            getattr(self._vf, name)

    def score(
        self,
        task_class: str,
        config: dict[str, Any],
        data: dict[str, Any],
        messages: list[dict[str, Any]],
        prompt_messages: int,
        finish_reason: str,
    ) -> dict[str, dict[str, float]]:
        """Weighted rewards and metrics of one conversation, by name.

        Args:
            task_class: `module:Class`.
            config: of the task.
            data: of the task.
            messages: as chat completions write them.
            prompt_messages: how many of them the model was given at the start.
            finish_reason: of the last turn, `stop` or `length`.
        """
        module, _, name = task_class.partition(":")
        kind = getattr(importlib.import_module(module), name)
        task = kind(kind.data_type()(**data), kind.config_type()(**config))
        trace = self._trace(task)
        try:
            asyncio.run(self._scored(task, trace, messages, prompt_messages, finish_reason))
        except Exception as error:  # verifiers wraps what rewards raise; memory is no fault of it
            if isinstance(error.__cause__, MemoryError):
                raise error.__cause__ from error
            raise
        missing = [name for name, reward in trace.rewards.items() if reward is None]
        if missing or not trace.rewards:
            raise ValueError(f"no value of the rewards {missing}" if missing else "no reward")
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return {
            "rewards": {name: reward.value for name, reward in trace.rewards.items()},
            "metrics": metrics,
        }

    def _trace(self, task: Any) -> Any:
        vf = self._vf
        name = type(task).__name__
        return vf.Trace(
            task=vf.TraceTask(type=name, data=task.data, key=task.key, hash=task.hash),
            state=self._state_cls(type(task))(),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
        )

    async def _scored(
        self, task: Any, trace: Any, messages: list[Any], given: int, finish_reason: str
    ) -> None:
        await self._hook(task, "setup", trace)
        for index, message in enumerate(messages):
            sampled = index >= given and message["role"] == "assistant"
            parent = index - 1 if index else None
            node = self._vf.MessageNode(parent=parent, message=message, sampled=sampled)
            trace.nodes.append(node)
            if sampled:
                why = finish_reason if index == len(messages) - 1 else "tool_calls"
                trace.calls.append(self._vf.ModelCall(node=index, finish_reason=why))
        trace.stop("agent_completed")
        await self._hook(task, "finalize", trace)
        await task.score(trace)

    async def _hook(self, task: Any, name: str, trace: Any) -> None:
        # The base class has an empty one that asks for a runtime.
        if getattr(type(task), name) is not getattr(self._vf.Task, name):
            await self._invoke(getattr(task, name), {"trace": trace})
