"""An agent with its own loop: it asks for a sum and lets the model call a tool until it answers.

Nothing here knows of training: the client is the SDK of OpenAI, and the reward is what is returned.
"""

import json
import random
import re

from openai import AsyncOpenAI

from agentrl.types import Task

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        },
    },
}


async def agent(task: Task, client: AsyncOpenAI, *, turns: int = 3) -> float:
    messages = [{"role": "user", "content": task.prompt}]
    for _ in range(turns):
        turn = await client.chat.completions.create(model="policy", messages=messages, tools=[ADD])
        said = turn.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            numbers = re.findall(r"-?\d+", said.content or "")
            return float(bool(numbers) and int(numbers[-1]) == task.label)
        for call in said.tool_calls:
            given = json.loads(call.function.arguments)
            try:
                text = str(given["a"] + given["b"])
            except (KeyError, TypeError):
                text = "error: give the numbers a and b"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    return 0.0


def tasks(split: str = "train", n: int = 64) -> list[Task]:
    draw = random.Random(split)
    pairs = [(draw.randint(1, 9), draw.randint(1, 9)) for _ in range(n)]
    return [
        Task(id=f"{split}-{i}", prompt=f"What is {a} + {b}?", label=a + b, split=split)
        for i, (a, b) in enumerate(pairs)
    ]
