"""The wires through the real SDKs, plain and as streams, over a port and in this process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from agentrl.chat import build_chat
from agentrl.config.schema import ChatSection
from agentrl.errors import ConfigError
from agentrl.gateway import Gateway, bound_client, listening
from agentrl.gateway.records import RefusalReason
from agentrl.testing import ByteTokenizer
from tests.gateway.gateway_fakes import CALL, CHAT_TOOLS, MESSAGES_TOOLS, send, serve
from tests.rollout.rollout_fakes import call

TWO = f"Both.{CALL}" + call("add", '{"a": 3, "b": 4}')
RESPONSES_TOOLS: Any = [{"type": "function", "strict": None, **CHAT_TOOLS[0]["function"]}]
USER: Any = [{"role": "user", "content": "Begin."}]


def openai_of(served: Any) -> openai.AsyncOpenAI:
    return bound_client("openai", served.gateway, served.session)


def anthropic_of(served: Any) -> anthropic.AsyncAnthropic:
    return bound_client("anthropic", served.gateway, served.session)


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_completions(chat, stream):
    served = serve(chat, [TWO])
    client = openai_of(served)
    common: Any = {"model": "policy", "messages": USER, "tools": CHAT_TOOLS, "unknown": 1}
    common["extra_body"] = {"unknown": common.pop("unknown")}
    if stream:
        async with client.chat.completions.stream(
            **common, stream_options={"include_usage": True}
        ) as events:
            async for _ in events:
                pass
            turn = await events.get_final_completion()
    else:
        turn = await client.chat.completions.create(**common)
    (choice,) = turn.choices
    assert choice.message.content == "Both."
    assert choice.finish_reason == "tool_calls"
    made = choice.message.tool_calls or []
    assert [json.loads(item.function.arguments) for item in made] == [
        {"a": 1, "b": 2}, {"a": 3, "b": 4},
    ]  # fmt: skip
    assert len({item.id for item in made}) == 2
    (request,) = served.engine.requests
    assert turn.usage is not None
    assert turn.usage.prompt_tokens == len(request.prompt_ids)
    assert request.generation is not None
    assert turn.usage.completion_tokens == len(request.generation.ids)
    await client.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_messages(chat, stream):
    served = serve(chat, [TWO])
    client = anthropic_of(served)
    common: Any = {"model": "policy", "messages": USER, "tools": MESSAGES_TOOLS, "max_tokens": 999}
    if stream:
        async with client.messages.stream(**common) as events:
            turn = await events.get_final_message()
    else:
        turn = await client.messages.create(**common)
    text, *uses = turn.content
    assert text.type == "text"
    assert text.text == "Both."
    assert [use.input for use in uses if use.type == "tool_use"] == [
        {"a": 1, "b": 2}, {"a": 3, "b": 4},
    ]  # fmt: skip
    assert turn.stop_reason == "tool_use"
    assert turn.usage.output_tokens == len(TWO.encode()) + 1
    await client.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_responses(chat, stream):
    served = serve(chat, [TWO, "Fine."])
    client = openai_of(served)
    common: Any = {"model": "policy", "input": "Begin.", "tools": RESPONSES_TOOLS}
    if stream:
        async with client.responses.stream(**common) as events:
            turn = await events.get_final_response()
    else:
        turn = await client.responses.create(**common)
    assert turn.status == "completed"
    assert turn.output_text == "Both."
    made = [item for item in turn.output if item.type == "function_call"]
    assert [json.loads(item.arguments) for item in made] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    output: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "7"} for item in made
    ]
    # Only what is new, behind the answer by its id.
    after = await client.responses.create(
        model="policy", input=output, previous_response_id=turn.id, tools=RESPONSES_TOOLS
    )
    assert after.output_text == "Fine."
    first, second = served.engine.requests
    assert first.generation is not None
    seen = first.prompt_ids + first.generation.ids
    assert second.prompt_ids[: len(seen)] == seen
    await client.close()


PATCH = """*** Begin Patch
+ "a"
*** End Patch"""
PATCHES = call("apply_patch", json.dumps({"input": PATCH})) + call("add", '{"a": 1, "b": 2}')
FREE = {"name": "apply_patch", "description": "Edit files."}
ADD = {"type": "function", **CHAT_TOOLS[0]["function"]}


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_with_tools_of_bare_text_and_of_a_namespace(chat, stream):
    """Fails if a tool is not offered, or is called in another form than its client knows."""
    served = serve(chat, [PATCHES, "Fine."])
    client = openai_of(served)
    space = {"type": "namespace", "name": "numbers", "description": "Sums.", "tools": [ADD]}
    hosted = [{"type": f"web_search{end}"} for end in ("", "_2025_08_26", "_preview_2025_03_11")]
    tools: Any = [{"type": "custom", **FREE}, space, *hosted]
    common: Any = {"model": "policy", "input": USER, "tools": tools}
    if stream:
        async with client.responses.stream(**common) as events:
            turn = await events.get_final_response()
    else:
        turn = await client.responses.create(**common)
    patch, added = turn.output
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "apply_patch", PATCH)
    assert (added.type, added.name, added.namespace) == ("function_call", "add", "numbers")
    shown = ByteTokenizer().decode(served.engine.requests[0].prompt_ids)
    assert "apply_patch" in shown
    assert '"add"' in shown
    assert "web_search" not in shown
    # Echoed as it came, the history is the one that was sampled.
    output: Any = [
        {"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "done"},
        {"type": "function_call_output", "call_id": added.call_id, "output": "3"},
    ]
    echo = [item.model_dump(exclude_none=True) for item in turn.output]
    await client.responses.create(model="policy", input=[*USER, *echo, *output], tools=tools)
    first, second = served.engine.requests
    seen = first.prompt_ids + first.generation.ids
    assert second.prompt_ids[: len(seen)] == seen
    await client.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_completions_with_a_tool_of_bare_text(chat, stream):
    served = serve(chat, [PATCHES, "Fine."])
    client = openai_of(served)
    tools: Any = [{"type": "custom", "custom": FREE}, CHAT_TOOLS[0]]
    common: Any = {"model": "policy", "messages": USER, "tools": tools}
    if stream:
        made: dict[int, dict[str, Any]] = {}
        async for chunk in await client.chat.completions.create(**common, stream=True):
            for part in chunk.choices[0].delta.tool_calls or []:
                known = made.setdefault(part.index, {"text": ""})
                dumped = part.model_dump(exclude_none=True)
                known |= {key: dumped[key] for key in ("id", "type") if key in dumped}
                inner = dumped.get("custom") or dumped["function"]
                known["text"] += inner.get("input", inner.get("arguments", ""))
        ids = [item["id"] for item in made.values()]
        assert [item["type"] for item in made.values()] == ["custom", "function"]
        assert made[0]["text"] == PATCH
    else:
        turn = await client.chat.completions.create(**common)
        patch, added = turn.choices[0].message.tool_calls or []
        assert (patch.type, patch.custom.input) == ("custom", PATCH)
        assert added.type == "function"
        ids = [patch.id, added.id]
    custom = {"id": ids[0], "type": "custom", "custom": {"name": "apply_patch", "input": PATCH}}
    plain = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    function = {"id": ids[1], "type": "function", "function": plain}
    said: Any = {"role": "assistant", "content": None, "tool_calls": [custom, function]}
    results: Any = [{"role": "tool", "tool_call_id": one, "content": "done"} for one in ids]
    await client.chat.completions.create(
        model="policy", messages=[*USER, said, *results], tools=tools
    )
    first, second = served.engine.requests
    seen = first.prompt_ids + first.generation.ids
    assert second.prompt_ids[: len(seen)] == seen
    await client.close()


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("chat/completions", {"messages": USER, "functions": [FREE]}, "offer them as tools"),
        ("chat/completions", {"messages": USER, "tools": [{"type": "magic"}]}, "tools[0].type"),
        ("responses", {"input": "x", "tools": [{"type": "magic"}]}, "tools[0].type is 'magic'"),
        (
            "responses",
            {"input": "x", "tools": [{"type": "namespace", "name": "n", "tools": [{"type": 3}]}]},
            "tools[0].tools[0].type is 3",
        ),
        ("responses", {"input": "x", "tools": [{"type": "custom"}]}, "name of a function"),
    ],
)
async def test_tools_that_cannot_be_offered_are_refused(chat, path, body, said):
    served = serve(chat, ["x"])
    status, data = await served.post(path, json.dumps({"model": "policy", **body}).encode())
    assert status == 400
    assert said in data["error"]["message"]
    assert not served.engine.requests


async def test_a_thought_is_served_apart_and_may_be_left_out_of_the_echo(chat):
    served = serve(chat, ["<think>hm</think>\n\nYes.", "Sure."])
    one = await openai_of(served).chat.completions.create(model="policy", messages=USER)
    message: Any = one.choices[0].message
    assert (message.reasoning_content, message.content) == ("hm", "Yes.")
    await served.chat([*USER, {"role": "assistant", "content": "Yes."}, *USER])
    assert served.session.report() == {}
    turn = await anthropic_of(serve(chat, ["<think>hm</think>Yes."])).messages.create(
        model="policy", max_tokens=99, messages=USER
    )
    assert [block.type for block in turn.content] == ["thinking", "text"]


async def test_a_call_that_quotes_the_end_of_a_thought_is_served(chat):
    """Fails if the agent is given half of the call as words, or gets none."""
    call = '<tool_call>{"name": "add", "arguments": {"a": "</think>"}}</tool_call>'
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    for said, thought, words in (
        (f"I write.{call}", None, "I write."),
        (f"<think>Or {call}?</think>I write.{call}", f"Or {call}?", "I write."),
    ):
        served = serve(chat, [said])
        answer = await openai_of(served).chat.completions.create(
            model="policy", messages=USER, tools=[tool]
        )
        message: Any = answer.choices[0].message
        assert getattr(message, "reasoning_content", None) == thought
        assert message.content == words
        (given,) = message.tool_calls
        assert json.loads(given.function.arguments) == {"a": "</think>"}


async def test_stop_texts_shorten_what_was_sampled(chat):
    """Fails if the ids keep what stands behind the stop text: the agent never saw it."""
    served = serve(chat, ["ab STOP cd", "next"])
    turn = await anthropic_of(served).messages.create(
        model="policy", max_tokens=99, messages=USER, stop_sequences=["zz", "STOP"]
    )
    assert [block.text for block in turn.content if block.type == "text"] == ["ab"]
    assert (turn.stop_reason, turn.stop_sequence) == ("stop_sequence", "STOP")
    (row,) = served.rows().rows
    assert bytes(row.ids[row.prompt_length :]) == b"ab STOP"
    echo: Any = [*USER, {"role": "assistant", "content": "ab"}, *USER]
    await served.chat(echo)
    assert served.session.report() == {}
    # The turn was not ended by its stop token, so that is what the next ids begin with.
    prompt = served.engine.requests[1].prompt_ids
    assert prompt[len(row.ids)] == 258


async def test_without_parallel_calls_a_turn_ends_behind_its_first(chat):
    served = serve(chat, [TWO])
    said = await served.chat(USER, tools=CHAT_TOOLS, parallel_tool_calls=False)
    assert len(said["tool_calls"]) == 1
    (row,) = served.rows().rows
    assert bytes(row.ids[row.prompt_length :]).decode() == f"Both.{CALL}"


async def test_a_call_is_text_where_no_tool_may_be_called(chat):
    for more in ({}, {"tools": CHAT_TOOLS, "tool_choice": "none"}):
        said = await serve(chat, [CALL]).chat(USER, **more)
        assert said["content"] == CALL
        assert "tool_calls" not in said


async def test_max_tokens_cut_a_turn_off(chat):
    served = serve(chat, ["abcdef"])
    turn = await openai_of(served).chat.completions.create(
        model="policy", messages=USER, max_completion_tokens=3
    )
    assert (turn.choices[0].message.content, turn.choices[0].finish_reason) == ("abc", "length")
    response = await openai_of(serve(chat, ["abcdef"])).responses.create(
        model="policy", input="x", max_output_tokens=3
    )
    assert response.status == "incomplete"


async def test_tokens_are_counted_without_a_turn(chat):
    served = serve(chat, ["x"])
    counted = await anthropic_of(served).messages.count_tokens(model="policy", messages=USER)
    assert served.engine.requests == []
    await served.chat(USER)
    assert counted.input_tokens == len(served.engine.requests[0].prompt_ids)


async def test_models_are_listed_for_both_sdks(chat):
    served = serve(chat, ["x"])
    assert [model.id async for model in openai_of(served).models.list()] == ["policy"]
    assert [model.id async for model in anthropic_of(served).models.list()] == ["policy"]
    assert (await openai_of(served).models.retrieve("policy")).id == "policy"


async def test_any_name_is_the_policy_unless_others_are_listed(chat):
    """Fails if a harness with a name of its own is turned away, or a list of names is no list."""
    served = serve(chat, ["x"] * 9)
    for path, body in (
        ("chat/completions", {"messages": USER}),
        ("messages", {"messages": USER, "max_tokens": 9}),
        ("responses", {"input": USER}),
    ):
        status, answer = await served.post(path, {"model": "gpt-7", **body})
        assert (status, answer["model"]) == (200, "gpt-7"), answer
    assert (await openai_of(served).models.retrieve("gpt-7")).id == "gpt-7"
    listed = serve(chat, ["x"], gateway=Gateway(models=["small", "large"]))
    assert [model.id async for model in openai_of(listed).models.list()] == ["small", "large"]
    for name, expected in (("large", 200), ("policy", 404)):
        body = {"model": name, "messages": USER}
        status, answer = await listed.post("chat/completions", body)
        assert status == expected
    assert "valid: large, small" in answer["error"]["message"]


async def test_log_probs_are_those_of_the_sampled_tokens(chat):
    """Fails if they are asked for and left out, on either wire of OpenAI, whole or streamed."""
    served = serve(chat, ["hi"] * 9)
    client = openai_of(served)
    whole = await client.chat.completions.create(model="policy", messages=USER, logprobs=True)
    found = whole.choices[0].logprobs.content
    assert "".join(one.token for one in found) == "hi<|im_end|>"
    assert [one.bytes for one in found[:2]] == [[104], [105]]
    node = served.session.tree.sampled[0]
    assert [one.logprob for one in found] == list(node.said.generation.log_probs)
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            model="policy", messages=USER, logprobs=True, stream=True, seed=1
        )
    ]
    streamed = [c.choices[0].logprobs.content for c in chunks if c.choices[0].logprobs]
    assert [[one.token for one in part] for part in streamed] == [[one.token for one in found]]
    include: Any = ["message.output_text.logprobs"]
    said = await client.responses.create(model="policy", input=USER, include=include)
    assert [one.token for one in said.output[0].content[0].logprobs] == ["h", "i", "<|im_end|>"]
    plain = await client.chat.completions.create(model="policy", messages=USER)
    assert plain.choices[0].logprobs is None


@pytest.mark.parametrize(
    ("path", "more", "field"),
    [
        ("responses", {"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format"),
        ("responses", {"top_logprobs": 2}, "top_logprobs"),
        ("messages", {"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
        (
            "messages",
            {"output_config": {"format": {"type": "json_schema"}}},
            "output_config.format",
        ),
    ],
)
async def test_a_form_that_nothing_holds_to_is_refused_by_name(chat, path, more, field):
    served = serve(chat, ["x"] * 3)
    body = {"model": "policy", "input": USER, "messages": USER, "max_tokens": 9}
    status, answer = await served.post(path, body | more)
    assert (status, field in answer["error"]["message"]) == (400, True)
    kind = {"output_config": {"effort": "low"}, "text": {"format": {"type": "text"}}}
    assert (await served.post(path, body | kind))[0] == 200


# -- errors ---------------------------------------------------------------------------------------

BAD_TOOL = {"type": "function", "function": {"name": "x", "parameters": {"type": "strange"}}}
ODD_SCHEMA = {"type": "object", "properties": {"a": {"required": "b"}}}
ODD_TOOL = {"type": "function", "function": {"name": "x", "parameters": ODD_SCHEMA}}
IMAGE = [{"type": "image_url", "image_url": {"url": "data:,"}}]


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({"n": 2}, 400, "n is 2, expected 1"),
        ({"model": 7}, 400, "model is 7, expected a name"),
        ({"model": ""}, 400, "model is '', expected a name"),
        ({"model": "m" * 10**6}, 413, "at most 256"),
        (
            {"response_format": {"type": "json_object"}},
            400,
            "response_format.type is 'json_object'",
        ),
        ({"response_format": "json"}, 400, "response_format is 'json', expected an object"),
        ({"top_logprobs": 5}, 400, "top_logprobs is 5, expected 0"),
        ({"logprobs": 3}, 400, "logprobs is 3, expected true or false"),
        ({"messages": [{"role": "user", "content": IMAGE}]}, 400, "reads text only"),
        ({"messages": []}, 400, "holds no text"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "expected one of system"),
        ({"messages": [*USER, {"role": "assistant", "content": "a"}]}, 400, "ends with a message"),
        ({"messages": 3}, 400, "messages is 3, expected a list"),
        (
            {"tools": [BAD_TOOL]},
            400,
            "tools[0].function.parameters.type is 'strange', expected",
        ),
        ({"tools": [ODD_TOOL]}, 400, "parameters.properties.a.required is 'b', expected a list"),
        ({"max_tokens": 0}, 400, "expected a whole number of at least 1"),
        ({"stop": [1]}, 400, "expected a text or a list of texts"),
        ({"stream": "yes"}, 400, "expected true or false"),
    ],
)
async def test_a_bad_request_is_one_clear_error_and_leaves_nothing(chat, more, status, words):
    served = serve(chat, ["x"])
    body = {"model": "policy", "messages": USER} | more
    got, answer = await served.post("chat/completions", body)
    assert got == status
    assert words in answer["error"]["message"]
    assert sum(served.gateway.refused.values()) == 1
    assert served.engine.requests == []
    assert served.session.rows(0.0) is None


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
async def test_each_wire_has_errors_of_its_own_shape(chat, path):
    served = serve(chat, ["x"], gateway=Gateway(most_bytes=100))
    whole = {"model": "policy", "messages": USER, "input": USER, "max_tokens": 9}
    status, large = await served.post(path, whole)
    assert status == 413
    status, broken = await served.post(path, b'{"a":')
    assert status == 400
    status, unknown = await served.post(path, {}, root="/s/nobody/v1/")
    assert status == 401
    for answer in (large, broken, unknown):
        if path == "messages":
            assert answer["type"] == "error"
            assert set(answer["error"]) == {"type", "message"}
        else:
            assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert "not JSON" in broken["error"]["message"]
    assert served.gateway.refused == {
        RefusalReason.TOO_LARGE: 1, RefusalReason.BAD_REQUEST: 1, RefusalReason.UNKNOWN_SESSION: 1,
    }  # fmt: skip


async def test_a_full_context_is_the_error_that_agents_know(chat):
    served = serve(chat, ["x"], max_context_tokens=64, max_response_tokens=32, max_turn_tokens=8)
    long: Any = [{"role": "user", "content": "x" * 100}]
    with pytest.raises(openai.BadRequestError) as failed:
        await openai_of(served).chat.completions.create(model="policy", messages=long)
    assert failed.value.code == "context_length_exceeded"
    assert "maximum context length is 64 tokens" in failed.value.message
    with pytest.raises(anthropic.BadRequestError) as refused:
        await anthropic_of(served).messages.create(model="policy", messages=long, max_tokens=9)
    assert "prompt is too long: " in str(refused.value)
    assert served.session.report() == {"gateway_refused_context_full": 2.0}


def gone(number: int, session: str) -> Exception:
    return RuntimeError("gone")


async def test_an_engine_that_fails_in_a_stream_is_an_event(chat):
    client = openai_of(serve(chat, ["x"], fail=gone))
    async with client.chat.completions.stream(model="policy", messages=USER) as events:
        with pytest.raises(openai.APIError, match="the engine failed"):
            await events.get_final_completion()
    other = anthropic_of(serve(chat, ["x"], fail=gone))
    async with other.messages.stream(model="policy", messages=USER, max_tokens=9) as stream:
        with pytest.raises(anthropic.APIError, match="the engine failed"):
            await stream.get_final_message()
    client = openai_of(serve(chat, ["x"], fail=gone))
    async with client.responses.stream(model="policy", input="x") as responses:
        with pytest.raises(openai.APIError, match="the engine failed"):
            await responses.get_final_response()


async def test_a_path_that_is_not_spoken(chat):
    served = serve(chat, ["x"])
    status, answer = await served.post("embeddings", {})
    assert status == 404
    assert "POST /v1/chat/completions" in answer["error"]["message"]
    assert await send(served.gateway, "HEAD", "/", b"", {}) == (200, b'{"object":"gateway"}')


# -- over a port ----------------------------------------------------------------------------------


async def test_a_session_is_named_by_path_header_or_key(chat):
    served = serve(chat, ["x"])
    secret = served.session.secret
    async with listening(served.gateway) as address, httpx2.AsyncClient() as http:
        for url, headers in (
            (f"{address}/s/{secret}/v1/models", {}),
            (f"{address}/v1/models", {"x-agentrl-session": secret}),
            (f"{address}/v1/models", {"x-api-key": secret}),
            (f"{address}/v1/models", {"authorization": f"Bearer {secret}"}),
        ):
            assert (await http.get(url, headers=headers)).status_code == 200, url
        assert (await http.get(f"{address}/v1/models")).status_code == 401
        client = openai.AsyncOpenAI(api_key=secret, base_url=f"{address}/v1", max_retries=0)
        turn = await client.chat.completions.create(model="policy", messages=USER)
        assert turn.choices[0].message.content == "x"
        await client.close()


async def test_beyond_this_machine_a_token_is_needed(chat):
    with pytest.raises(ConfigError, match="without an access token"):
        async with listening(Gateway(), host="0.0.0.0"):
            pass
    served = serve(chat, ["x"], gateway=Gateway(token="opensesame"))
    async with listening(served.gateway, host="0.0.0.0") as address:
        door = address.replace("0.0.0.0", "127.0.0.1")
        async with httpx2.AsyncClient() as http:
            for place in ("/v1/models", "/", "/s/no-such-session/v1/models"):
                refused = await http.get(f"{door}{place}")
                assert refused.status_code == 401
                assert "x-agentrl-token" in refused.json()["error"]["message"]
            token = {"x-agentrl-token": "opensesame"}
            assert (await http.get(f"{door}/", headers=token)).status_code == 200
            # The secret of an open session says as much.
            inside = f"{door}/s/{served.session.secret}/v1/models"
            assert (await http.get(inside)).status_code == 200


async def test_a_stream_that_waits_is_kept_alive(chat):
    served = serve(chat, ["x"], gateway=Gateway(keep_alive_s=0.02), delay_s=0.15)
    body = json.dumps({"model": "policy", "messages": USER, "stream": True}).encode()
    path = f"/s/{served.session.secret}/v1/chat/completions"
    status, data = await send(served.gateway, "POST", path, body, {})
    assert status == 200
    assert data.count(b": keep-alive\n\n") >= 3
    assert data.endswith(b"data: [DONE]\n\n")


async def test_a_dropped_stream_is_sampled_to_its_end_but_only_trained_if_it_is_asked_for_again(
    chat,
):
    """Fails if a turn that the agent never saw is trained, or a retry samples another one."""
    served = serve(chat, ["one", "two"], delay_s=1.0)
    async with listening(served.gateway) as address:
        url = f"{address}/s/{served.session.secret}/v1/chat/completions"
        body = {"model": "policy", "messages": USER, "stream": True}
        async with httpx2.AsyncClient() as http:
            with pytest.raises(httpx2.TimeoutException):
                await http.post(url, json=body, timeout=0.5)
        async with asyncio.timeout(120):
            while served.gateway.dropped == 0 or not served.session.tree.sampled:
                await asyncio.sleep(0.01)
        assert served.session.rows(1.0) is None
        async with httpx2.AsyncClient() as http:
            again = await http.post(url, json=body, timeout=120)
        assert '"content":"one"' in again.text
    assert len(served.engine.requests) == 1
    assert len(served.rows().rows) == 1
    assert served.session.report() == {"gateway_dropped": 1.0, "gateway_retries": 1.0}


async def test_streams_dropped_half_way_leave_nothing_behind(chat):
    """Fails if a task stays, if a part of a turn is recorded, or if others wait for the dropped."""
    served = serve(chat, lambda ids, session: "some words", max_assistant_turns=200)
    before = asyncio.all_tasks()
    for number in range(100):
        wire = ("chat/completions", "messages", "responses")[number % 3]
        body = {"model": "policy", "max_tokens": 900, "stream": True, "metadata": {"n": number}}
        raw = json.dumps({**body, "messages": USER, "input": USER}).encode()
        waiting = [{"type": "http.request", "body": raw, "more_body": False}]
        gone, sent = asyncio.Event(), 0

        async def receive(waiting=waiting, gone=gone):
            if waiting:
                return waiting.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def reply(message, gone=gone, last=1 + number % 4):
            nonlocal sent
            sent += 1
            if sent == last:
                gone.set()
                await asyncio.sleep(0.001)  # the server hears of it

        path = f"/s/{served.session.secret}/v1/{wire}"
        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        counting = served.post(
            "messages/count_tokens", {"model": "policy", "messages": USER, "tools": []}
        )
        _, (status, counted) = await asyncio.gather(served.gateway(scope, receive, reply), counting)
        assert (status, counted["input_tokens"] > 0, sent) == (200, True, 1 + number % 4)
    assert served.gateway.dropped == 100
    assert asyncio.all_tasks() == before
    assert served.session.rows(1.0) is None
    await served.chat(USER)
    (row,) = served.rows().rows
    assert sum(row.mask) == len(served.engine.requests[-1].generation.ids)


async def test_a_reply_prefix_is_given_before_every_turn(chat):
    """The prefix is part of what is read, and never trained on."""
    section = ChatSection(tool_parser="hermes", reply_prefix="<tool_call>\n")
    prefixed = build_chat(ByteTokenizer(), section)
    served = serve(prefixed, ['{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>', "b"])
    first = await served.chat(USER, tools=CHAT_TOOLS)
    (made,) = first["tool_calls"]
    result = {"role": "tool", "tool_call_id": made["id"], "content": "3"}
    await served.chat([*USER, first, result], tools=CHAT_TOOLS)
    one, two = served.engine.requests
    assert one.generation is not None
    seen = one.prompt_ids + one.generation.ids
    assert two.prompt_ids[: len(seen)] == seen
    assert served.session.report() == {}
