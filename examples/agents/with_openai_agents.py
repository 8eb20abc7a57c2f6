"""An agent of the OpenAI Agents SDK (`pip install openai-agents`)."""

from __future__ import annotations

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI
from sums import INSTRUCTIONS, add, reward

from agentrl.types import Task


async def agent(task: Task, client: AsyncOpenAI, *, turns: int = 6) -> float:
    adder = Agent(
        name="adder",
        instructions=INSTRUCTIONS,
        tools=[function_tool(add)],
        model=OpenAIChatCompletionsModel("policy", openai_client=client),
    )
    # Its traces would go to OpenAI.
    quiet = RunConfig(tracing_disabled=True)
    result = await Runner.run(adder, str(task.prompt), max_turns=turns, run_config=quiet)
    return reward(result.final_output, task)
