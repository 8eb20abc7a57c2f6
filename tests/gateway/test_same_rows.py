"""The same conversation through the loop and through the gateway gives the same rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agentrl.env import StepResult
from agentrl.rollout import RolloutWorker
from agentrl.types import SamplingParams, Task, Trajectory
from tests.gateway.gateway_fakes import ADD, CALL, CHAT_TOOLS, MESSAGES_TOOLS, agent_worker
from tests.rollout.conftest import bench  # noqa: F401 - the fixture of the loop
from tests.rollout.rollout_fakes import Talk, call

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

REPLIES = [
    f"Let me see.{CALL}",
    call("add", '{"b":5,  "a": 3}') + call("add", '{"a": 9, "b": 9}'),
    "It is <b>8</b>. \u4e16",
    "Bye.",
]


async def chat_agent(task: Task, client: Any) -> float:
    """Echoes through the SDK's own types, as most agents do."""
    messages: list[Any] = [{"role": "user", "content": task.prompt}]
    said = 0
    while said < 2:
        turn = await client.chat.completions.create(
            model="policy", messages=messages, tools=CHAT_TOOLS
        )
        message = turn.choices[0].message
        messages.append(message.model_dump())
        for made in message.tool_calls or ():
            arguments = json.loads(made.function.arguments)
            result = str(arguments["a"] + arguments["b"])
            messages.append({"role": "tool", "tool_call_id": made.id, "content": result})
        if not message.tool_calls:
            said += 1
            messages.append({"role": "user", "content": "Thanks.\n"})
    return 1.0


async def anthropic_agent(task: Task, client: AsyncAnthropic) -> float:
    messages: list[Any] = [{"role": "user", "content": task.prompt}]
    said = 0
    while said < 2:
        turn = await client.messages.create(
            model="policy", messages=messages, tools=MESSAGES_TOOLS, max_tokens=4000
        )
        messages.append({"role": "assistant", "content": turn.content})
        uses = [block for block in turn.content if block.type == "tool_use"]
        results: list[Any] = [
            {
                "type": "tool_result",
                "tool_use_id": use.id,
                "content": [{"type": "text", "text": str(use.input["a"] + use.input["b"])}],
            }
            for use in reversed(uses)
        ]
        if not uses:
            said += 1
        messages.append({"role": "user", "content": results or "Thanks.\n"})
    return 1.0


async def responses_agent(task: Task, client: Any) -> float:
    tools = [{"type": "function", "strict": None, **CHAT_TOOLS[0]["function"]}]
    items: list[Any] = [{"role": "user", "content": task.prompt}]
    said = 0
    while said < 2:
        turn = await client.responses.create(model="policy", input=items, tools=tools)
        items += [item.model_dump(exclude_none=True) for item in turn.output]
        made = [item for item in turn.output if item.type == "function_call"]
        for item in made:
            arguments = json.loads(item.arguments)
            result = str(arguments["a"] + arguments["b"])
            output = {"type": "function_call_output", "call_id": item.call_id, "output": result}
            items.append(output)
        if not made:
            said += 1
            items.append({"role": "user", "content": "Thanks.\n"})
    return 1.0


async def rows_of(worker: RolloutWorker) -> tuple[Trajectory, ...]:
    group = await worker.run_group(
        Task(id="task", prompt="What is 3 + 5?"),
        group_id="group",
        n=1,
        sampling=SamplingParams(max_tokens=10_000),
        seed=3,
    )
    return group.trajectories


@pytest.mark.parametrize("agent", [chat_agent, anthropic_agent, responses_agent])
async def test_rows_are_those_of_the_loop(bench, chat, agent):  # noqa: F811
    """Fails if a turn is encoded again, if results lose their order, if a mask or a log-probability
    moves by one position, or if the seed or budget of a turn differs."""
    silent = StepResult()
    thanks = StepResult(environment_feedback="Thanks.\n")
    done = StepResult(done=True, rewards=1.0)
    made = bench(
        REPLIES, lambda: Talk(silent, silent, thanks, done, prompt="What is 3 + 5?"), tools=[ADD]
    )
    (ours,) = await rows_of(made.worker)
    worker, engine = agent_worker(chat, REPLIES, agent)
    (theirs,) = await rows_of(worker)
    assert theirs.termination_detail == ""
    for name in (
        "prompt_ids", "prompt_text", "response_ids", "response_mask", "rollout_log_probs",
        "policy_versions", "reward", "score", "termination", "temperature",
    ):  # fmt: skip
        assert getattr(theirs, name) == getattr(ours, name), name
    asked = [request.sampling for request in made.engine.requests]
    assert [request.sampling for request in engine.requests] == asked
    spans = [(turn.role, turn.start, turn.end, turn.tool_calls) for turn in ours.turns]
    assert [(turn.role, turn.start, turn.end, turn.tool_calls) for turn in theirs.turns] == spans
    shown = [[(r.text, r.call_id, r.name) for r in turn.tool_results] for turn in ours.turns]
    theirs_shown = [[(r.text, r.call_id, r.name) for r in t.tool_results] for t in theirs.turns]
    assert theirs_shown == shown
    assert theirs.extra_logs == {}
