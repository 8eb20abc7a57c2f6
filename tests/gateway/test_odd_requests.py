"""Requests that no SDK sends, and values that only a model writes: answered, or one clear error."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from agentrl.rollout.history.tree import NodeKind
from tests.gateway.gateway_fakes import CALL, CHAT_TOOLS, MESSAGES_TOOLS, serve
from tests.rollout.rollout_fakes import call

USER = {"role": "user", "content": "Begin."}
MADE = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
BODIES: dict[str, Any] = {
    "chat/completions": {
        "model": "policy", "stop": ["x"], "stream": False, "tools": CHAT_TOOLS, "n": 1,
        "tool_choice": "auto", "stream_options": {"include_usage": True}, "max_tokens": 99,
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Add."}]}, USER,
            {"role": "assistant", "content": None, "tool_calls": [MADE]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ],
    },
    "messages": {
        "model": "policy", "max_tokens": 99, "system": [{"type": "text", "text": "Add."}],
        "tools": MESSAGES_TOOLS, "tool_choice": {"type": "auto"}, "stop_sequences": ["x"],
        "messages": [
            USER,
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "3"}]},
        ],
    },
    "responses": {
        "model": "policy", "instructions": "Add.", "max_output_tokens": 99, "metadata": {},
        "tools": [{"type": "function", **CHAT_TOOLS[0]["function"]}],
        "input": [
            USER, {"type": "reasoning", "id": "r", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
        ],
    },
}  # fmt: skip
JUNK = [None, True, -1, 1e300, "", "x", "\ud800", [], {}, [None], {"type": "image"}, [[[]]], "stop"]


def spoiled(rng: random.Random, value: Any) -> Any:
    """The value with one part of it replaced, left out or doubled."""
    value = copy.deepcopy(value)
    node, last = value, None
    while isinstance(node, dict | list) and node and (last is None or rng.random() < 0.75):
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        last, node = (node, key), node[key]
    owner, key = last or (value, None)
    if isinstance(owner, list) and rng.random() < 0.3:
        owner.append(copy.deepcopy(owner[key]))
    elif rng.random() < 0.2:
        del owner[key]
    else:
        owner[key] = copy.deepcopy(rng.choice(JUNK))
    return value


@pytest.mark.parametrize("path", BODIES)
async def test_a_spoiled_request_is_answered_or_refused(chat, path):
    """Fails if reading a request raises anything but a refusal, as a KeyError in a wire does."""
    rng = random.Random(path)
    found: set[int] = set()
    for _ in range(600):
        body = spoiled(rng, BODIES[path])
        served = serve(chat, [CALL])
        status, answer = await served.post(path, body)
        found.add(status)
        assert status in (200, 400, 404), answer
        assert (status == 200) is bool(served.session.tree.sampled)
        if status != 200:
            assert answer["error"]["message"], body
            assert served.session.rows(0.0) is None
    assert {200, 400} <= found


async def test_values_nested_without_end_are_refused(chat):
    served = serve(chat, ["x"])
    deep = b'{"model": "policy", "max_tokens": 9, "messages": ' + b"[" * 9000 + b"]" * 9000 + b"}"
    status, answer = await served.post("messages", deep)
    assert status == 400
    assert "nested too deep" in answer["error"]["message"]


@pytest.mark.parametrize("value", [10**40, "\ud83d", "\u4e16", 1e300, True, "</tool_call>"])
async def test_arguments_that_only_a_model_writes_come_back_as_they_were(chat, value):
    """Whole numbers of any length, half of a pair of surrogates: served, echoed and matched."""
    said = call("add", json.dumps({"a": value, "b": 2}))
    for path, body in BODIES.items():
        served = serve(chat, [said, "done"])
        body = {**body, "stop": [], "stop_sequences": [], "max_tokens": 500}
        body["max_output_tokens"] = 500
        name = "input" if path == "responses" else "messages"
        status, one = await served.post(path, {**body, name: [USER]})
        assert status == 200, one
        if path == "responses":
            echo = one["output"]
        elif path == "messages":
            echo = [{"role": "assistant", "content": one["content"]}]
        else:
            echo = [one["choices"][0]["message"]]
        status, two = await served.post(path, {**body, name: [USER, *echo, USER]})
        assert status == 200, two
        last = served.session.tree.sampled[-1].path()
        assert NodeKind.CONTEXT not in {node.kind for node in last}
        assert served.session.report() == {}
