"""An agent of Pydantic AI (`pip install 'pydantic-ai-slim[openai]'`)."""

from __future__ import annotations

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from sums import INSTRUCTIONS, add, reward

from agentrl.types import Task


async def agent(task: Task, client: AsyncOpenAI) -> float:
    model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client))
    adder = Agent(model, instructions=INSTRUCTIONS, tools=[add])
    result = await adder.run(str(task.prompt))
    return reward(result.output, task)
