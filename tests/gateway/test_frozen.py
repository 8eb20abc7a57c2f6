"""Side calls that another served model answers."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.schema import RolloutSection
from agentrl.errors import ConfigError
from agentrl.gateway.side_model import SideModel
from agentrl.runtime.assembly.parts import side_calls_of
from agentrl.types import SamplingParams, Task, Termination, Trajectory
from tests.gateway.gateway_fakes import CHAT_TOOLS, agent_worker
from tests.served.scripted_server import scripted_server

SYSTEM = {"role": "system", "content": "You add."}
USED = {"prompt_tokens": 100, "completion_tokens": 3}


def frozen(url: str, **more: Any) -> SideModel:
    settings = {"url": url, "model": "m", "price_in": 10.0, "tries": 1, "timeout_s": 120.0, **more}
    made = side_calls_of(RolloutSection(side_calls=settings))
    assert not isinstance(made, str)
    return made


async def agent(task: Task, client: Any) -> float:
    """Two turns of its own, a sub-agent that calls a tool, and a title."""

    async def ask(messages: list[Any], **more: Any) -> Any:
        turn = await client.chat.completions.create(model="policy", messages=messages, **more)
        return turn.choices[0].message

    mine: list[Any] = [SYSTEM, {"role": "user", "content": "Begin."}]
    mine += [await ask(mine, tools=CHAT_TOOLS), {"role": "user", "content": "On."}]
    other: list[Any] = [{**SYSTEM, "content": "Look."}, {"role": "user", "content": "x?"}]
    made = await ask(other, tools=CHAT_TOOLS)
    (call,) = made.tool_calls
    other += [made, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
    assert (await ask(other, tools=CHAT_TOOLS)).content == "x is 3"
    assert (await ask([{**SYSTEM, "content": "Title."}, *mine[1:]])).content == "Sums"
    # Its system prompt has changed, so that its first prompt is another one.
    await ask([{**SYSTEM, "content": "You add. One sum is known."}, *mine[1:]], tools=CHAT_TOOLS)
    return 1.0


async def row_of(chat: Any, model: SideModel) -> tuple[tuple[Trajectory, ...], Any]:
    worker, engine = agent_worker(
        chat, ["one", "two"], agent, side_calls=model, max_assistant_turns=9
    )
    group = await worker.run_group(
        Task(id="task", prompt="Begin."),
        group_id="group",
        n=1,
        sampling=SamplingParams(max_tokens=1000),
        seed=0,
    )
    return group.trajectories, engine


async def test_another_model_answers_side_calls(chat):
    """Fails if the policy samples one, if it becomes a row, or if its cost is lost."""
    function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    call = {"id": "c1", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    first = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": USED}
    async with scripted_server(first, "x is 3", "Sums") as server:
        (row, old), engine = await row_of(chat, frozen(server.url))
    assert row.termination_detail == ""
    assert (row.reward, row.termination) == (1.0, Termination.ENV_DONE)
    said = [[turn.text for turn in one.turns if turn.role == "assistant"] for one in (row, old)]
    assert said == [["two"], ["one"]]
    assert len(engine.requests) == 2
    assert row.extra_logs == {
        "gateway_branch_system": 1.0,
        "gateway_frozen_subagent": 2.0,
        "gateway_frozen_summary": 1.0,
    }
    assert row.usage["served/requests"] == 3
    assert row.usage["served/cost"] == pytest.approx(3 * 100 * 10 / 1e6)
    assert [body["model"] for body in server.asked] == ["m"] * 3
    assert server.asked[0]["tools"] == CHAT_TOOLS
    assert server.asked[1]["messages"][2]["tool_calls"][0]["function"]["name"] == "add"
    assert server.asked[1]["messages"][3] == {
        "role": "tool", "tool_call_id": "c1", "content": "3",
    }  # fmt: skip


async def test_the_other_wire(chat):
    used = {"input_tokens": 10, "output_tokens": 3}
    block = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1, "b": 2}}
    first = {"content": [block], "stop_reason": "tool_use", "usage": used}
    async with scripted_server(first, "x is 3", "Sums") as server:
        (row, _), _ = await row_of(chat, frozen(server.url, api="anthropic"))
    assert (row.reward, row.termination_detail) == (1.0, "")
    assert server.asked[0]["tools"][0]["input_schema"] == CHAT_TOOLS[0]["function"]["parameters"]
    assert server.asked[1]["messages"][-1]["content"][0]["type"] == "tool_result"
    assert server.asked[1]["system"] == "Look."


async def test_a_model_that_fails_is_infrastructure(chat):
    """Fails if the policy gets a reward of 0 for it."""
    async with scripted_server(always=500) as server:
        rows, _ = await row_of(chat, frozen(server.url))
    assert {(row.termination, row.reward) for row in rows} == {(Termination.ENV_CRASHED, None)}
    assert "rollout.side_calls: ServedModelError" in rows[0].termination_detail


def test_wrong_settings_are_found_before_a_run():
    with pytest.raises(ConfigError, match=r"rollout\.side_calls: url is missing"):
        side_calls_of(RolloutSection(side_calls={"model": "m"}))
