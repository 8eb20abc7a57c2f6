"""Plays turns of texts and tool calls on an environment, as the loop does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agentrl.env import Action, AgentInstance, StepResult
from agentrl.errors import ToolError
from agentrl.images import read_image
from agentrl.types import Image, Task, ToolCall, ToolResult


@dataclass(kw_only=True)
class Played:
    reward: float = 0.0
    score: float = 0.0
    done: bool = False
    turns: int = 0
    texts: list[str] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    last: StepResult | None = None

    def shown(self, text: str, images: Sequence[object]) -> None:
        self.texts.append(text)
        self.images += map(read_image, images)


def call(name: str, /, **arguments: object) -> ToolCall:
    return ToolCall(id="", name=name, arguments=arguments, raw="")


async def play(
    env: AgentInstance, task: Task, turns: Iterable[str | ToolCall | Sequence[ToolCall]]
) -> Played:
    """Until the episode is done or the turns are; a list is one turn with several calls."""
    played = Played()
    observation = await env.reset(task)
    tools = {tool.name: tool for tool in observation.tools}
    for message in observation.content:
        played.shown(message.content, message.images)
    for turn in turns:
        calls = [turn] if isinstance(turn, ToolCall) else [] if isinstance(turn, str) else turn
        results = []
        for one in calls:
            tool = tools[one.name]
            try:
                result = await tool.call(tool.validate(one.arguments), None)
            except ToolError as error:
                result = ToolResult(text=str(error))
            played.shown(result.text, result.images)
            results.append(result)
        step = await env.step(
            Action(
                text=turn if isinstance(turn, str) else "",
                tool_calls=tuple(calls),
                tool_results=tuple(results),
                turn=played.turns,
            )
        )
        played.turns += 1
        played.reward += step.rewards
        played.score, played.last = step.scores or 0.0, step
        if isinstance(step.environment_feedback, str):
            played.texts.append(step.environment_feedback)
        if step.done:
            played.done = True
            break
    return played
