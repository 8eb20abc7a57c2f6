"""Tools, environments and a bench that most rollout tests share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from agentrl.chat import ChatFormat
from agentrl.env import AgentInstance, Observation, StepResult
from agentrl.errors import ToolError
from agentrl.rollout import RolloutWorker
from agentrl.serving import TokenClient
from agentrl.testing import ScriptedEngine
from agentrl.types import SamplingParams, Task, Trajectory, TrajectoryGroup


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


async def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return str(a + b)


async def refuse() -> str:
    """Always say no."""
    raise ToolError("no, thank you")


async def explode() -> str:
    """Break."""
    raise RuntimeError("boom in the tool")


async def sleep(seconds: float) -> str:
    """Wait.

    Args:
        seconds: how long
    """
    await asyncio.sleep(seconds)
    return "slept"


class Talk(AgentInstance):
    """Follows a script of step results (the last one repeats) and keeps the actions."""

    def __init__(self, *steps: Any, prompt: Any = "Begin.") -> None:
        self.steps = steps or (StepResult(done=True, rewards=1.0),)
        self.prompt = prompt
        self.actions: list[Any] = []
        self.closed = 0

    async def reset(self, task: Task) -> Any:
        return Observation(content=self.prompt) if isinstance(self.prompt, str) else self.prompt

    async def step(self, action: Any) -> Any:
        self.actions.append(action)
        step = self.steps[min(len(self.actions), len(self.steps)) - 1]
        if isinstance(step, Exception):
            raise step
        return step

    async def close(self) -> None:
        self.closed += 1


@dataclass
class Bench:
    """One worker over one scripted engine."""

    chat: ChatFormat
    engine: ScriptedEngine
    client: TokenClient
    worker: RolloutWorker
    envs: list[Any]

    async def group(self, n: int = 1, *, seed: int = 0, **task: Any) -> TrajectoryGroup:
        return await self.worker.run_group(
            Task(**({"id": "task", "prompt": "Begin."} | task)),
            group_id="group",
            n=n,
            sampling=SamplingParams(max_tokens=10_000),
            seed=seed,
        )

    async def one(self, **task: Any) -> Trajectory:
        group = await self.group(**task)
        (row,) = group.trajectories
        return row


class Plain:
    """No subclass of anything; speaks dictionaries."""

    def __init__(self, word: str) -> None:
        self.word = word

    async def reset(self, states: dict) -> dict:
        return {"observation": states["observation"] + self.word}

    async def step(self, states: dict) -> dict:
        return {"rewards": 1.0, "done": True}


def make_plain(word: str) -> Plain:
    return Plain(word)
