"""Requests as records: which continued which, in which row its turn is, and why a row broke."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import openai
import pytest

from agentrl.rollout.history.requests import MOST_REFUSED
from agentrl.types import AgentRequest, Task
from tests.gateway.gateway_fakes import CALL, CHAT_TOOLS, Served, serve
from tests.gateway.test_agents import USER, ask, group_of
from tests.gateway.test_tree import BEGIN, SYSTEM, side_calls, user


def facts(served: Served, *names: str) -> list[tuple[Any, ...]]:
    """Some fields of all requests, after the rows were made."""
    served.session.rows(1.0)
    return [tuple(getattr(one, name) for name in names) for one in served.session.requests()]


def turn_of(served: Served, one: AgentRequest) -> str:
    """The text of the turn in the row that a record names."""
    assert one.row is not None
    assert one.turn is not None
    return served.rows().rows[one.row].turns[one.turn].text


async def test_side_calls_have_their_kind_and_their_row(chat):
    """Fails if a record names another row or turn than the one that holds its tokens."""
    said = ["title", "one", "found", "four", "summary"]
    served = serve(chat, said)
    await side_calls(served)
    assert facts(served, "kind", "behind", "branch") == [
        ("title", None, ""), ("main", None, ""), ("subagent", None, ""), ("main", 1, ""),
        ("summary", None, ""),
    ]  # fmt: skip
    records = served.session.requests()
    assert [turn_of(served, one) for one in records] == said
    assert [one.said for one in records] == said
    assert [one.asked for one in records][:2] == ["Begin.", "Begin."]
    for one, asked in zip(records, served.engine.requests, strict=True):
        assert asked.generation is not None
        assert one.prompt_tokens == len(asked.prompt_ids)
        assert one.sampled_tokens == len(asked.generation.ids)


async def test_turns_that_are_not_trained_say_why(chat):
    served = serve(chat, ["title", "one", "found", "four", "summary"], side_calls="context")
    await side_calls(served)
    assert facts(served, "row", "turn", "untrained") == [
        (None, None, "side_call"), (0, 0, ""), (None, None, "side_call"), (0, 2, ""),
        (None, None, "side_call"),
    ]  # fmt: skip


async def test_branches_have_their_reason_and_the_turn_they_share(chat):
    """Fails if a branch hangs on another request, or if its reason is lost on the way."""
    served = serve(chat, [CALL, "three", "seven", "again", "noon", "short", "none"])
    first = await served.chat([SYSTEM, BEGIN], tools=CHAT_TOOLS)
    (made,) = first["tool_calls"]
    result = {"role": "tool", "tool_call_id": made["id"], "content": "3"}
    history = [SYSTEM, BEGIN, first, result]
    await served.chat(history, tools=CHAT_TOOLS)
    edited = [SYSTEM, BEGIN, first, {**result, "content": "7"}]
    await served.chat(edited, tools=CHAT_TOOLS)
    await served.chat(edited, tools=CHAT_TOOLS, seed=5)
    noon = {**SYSTEM, "content": "You add. It is noon."}
    await served.chat([noon, BEGIN, first, result], tools=CHAT_TOOLS)
    await served.chat([SYSTEM, user("So far: 3.")], tools=CHAT_TOOLS)
    other = {**CHAT_TOOLS[0], "function": {**CHAT_TOOLS[0]["function"], "name": "plus"}}
    await served.chat([SYSTEM, BEGIN], tools=[other])
    assert facts(served, "kind", "behind", "branch") == [
        ("main", None, ""), ("main", 0, ""), ("main", 0, "edited"), ("main", 0, "asked_again"),
        ("main", None, "system"), ("main", None, "edited"), ("main", None, "tools"),
    ]  # fmt: skip
    report = served.session.report()
    assert report["gateway_branch_edited"] == 2
    assert report["gateway_branch_system"] == 1
    assert report["gateway_branch_asked_again"] == 1
    texts = [CALL, "three", "seven", "again", "noon", "short", "none"]
    assert [turn_of(served, one) for one in served.session.requests()] == texts


async def test_refusals_and_retries_stand_where_they_came(chat):
    served = serve(chat, ["one", "two"], max_assistant_turns=2)
    body = {"model": "policy", "messages": [BEGIN]}
    await served.post("chat/completions", {**body, "messages": 3})
    _, answer = await served.post("chat/completions", body)
    for _ in range(2):
        await served.post("chat/completions", body)
    history = [BEGIN, answer["choices"][0]["message"], user("More.")]
    await served.post("chat/completions", {**body, "messages": history})
    status, _ = await served.post("chat/completions", {**body, "messages": history, "seed": 1})
    assert status == 400
    records = served.session.requests()
    assert [one.refused.partition(":")[0] for one in records] == ["bad_request", "", "", "limit"]
    assert "messages is 3, expected a list" in records[0].refused
    assert [one.retries for one in records] == [0, 2, 0, 0]
    assert [one.kind for one in records] == ["", "main", "main", "main"]
    assert [one.behind for one in records] == [None, None, 1, 1]
    for _ in range(2 * MOST_REFUSED):
        await served.post("chat/completions", {**body, "messages": 3})
    assert len(served.session.requests()) == 2 + MOST_REFUSED


async def test_they_are_in_the_first_row_of_a_rollout_also_of_one_that_failed(chat):
    async def agent(task: Task, client: Any) -> float:
        with pytest.raises(openai.BadRequestError):
            await ask(client, [])
        await ask(client)
        await ask(client, [{"role": "user", "content": "Other. " + 300 * "x"}])
        return 1.0

    group, _ = await group_of(chat, agent, ["one", "two"])
    first, second = group.trajectories
    assert [one.sampled_tokens for one in first.requests] == [0, 4, 4]
    assert len(first.requests[2].asked) == 160
    assert second.requests == ()

    async def broken(task: Task, client: Any) -> float:
        await client.chat.completions.create(model="", messages=USER)
        return 1.0

    (row,) = (await group_of(chat, broken))[0].trajectories
    assert [asdict(one)["refused"].partition(":")[0] for one in row.requests] == ["bad_request"]


async def test_an_engine_that_fails_in_a_stream_is_a_refusal_of_its_session(chat):
    served = serve(chat, ["x"], fail=lambda number, session: RuntimeError("gone"))
    body = {"model": "policy", "messages": [BEGIN], "stream": True}
    status, _ = await served.post("chat/completions", body)
    assert status == 200
    assert served.session.report() == {"gateway_refused_engine": 1.0}
    assert [one.refused.partition(":")[0] for one in served.session.requests()] == ["engine"]
