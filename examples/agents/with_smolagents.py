"""An agent of smolagents (`pip install smolagents`), whose calls all block: it gets a thread.

smolagents tells a model its own calls as text, "Calling tools: [...]". What the model said would
then stand in another form in each request, which is an edit, and a row of its own for each turn.
`FaithfulModel` writes calls as calls.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from openai import OpenAI
from smolagents import LogLevel, MessageRole, OpenAIModel, ToolCallingAgent, tool
from sums import INSTRUCTIONS, add, reward

from agentrl.types import Task


class FaithfulModel(OpenAIModel):
    """A model that is shown what it said as it said it."""

    def _prepare_completion_kwargs(self, messages: list[Any], **named: Any) -> dict[str, Any]:
        asked = super()._prepare_completion_kwargs(messages, **named)
        return {**asked, "messages": _written(messages)}


def _written(messages: list[Any]) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    ids: list[str] = []
    for message in messages:
        text = "".join(part["text"] for part in message.content)
        if message.role == MessageRole.TOOL_CALL:
            calls = ast.literal_eval(text.removeprefix("Calling tools:\n"))
            for call in calls:
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
            ids = [call["id"] for call in calls]
            written.append({"role": "assistant", "content": None, "tool_calls": calls})
        elif message.role == MessageRole.TOOL_RESPONSE and ids:
            # The results of one step are one text.
            for number, name in enumerate(ids):
                content = "see below" if number < len(ids) - 1 else text
                written.append({"role": "tool", "tool_call_id": name, "content": content})
            ids = []
        else:
            role = "user" if message.role == MessageRole.TOOL_RESPONSE else message.role.value
            written.append({"role": role, "content": text})
    return written


def agent(task: Task, client: OpenAI, *, turns: int = 6) -> float:
    model = FaithfulModel("policy", client=client, retry=False)
    adder = ToolCallingAgent(
        tools=[tool(add)], model=model, max_steps=turns, verbosity_level=LogLevel.OFF
    )
    adder.prompt_templates["system_prompt"] = f"{INSTRUCTIONS} End with final_answer."
    return reward(adder.run(str(task.prompt)), task)
