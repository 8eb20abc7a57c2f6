"""Every parameter that the SDKs document, with every kind of value their types allow.

Each is sent by the SDK itself over a port, plain and as a stream, async and sync, and is served or
refused in the form of its wire. Answers and events must fit the SDK's own types.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import RawMessageStreamEvent
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses import ResponseStreamEvent
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from agentrl.gateway import listening
from tests.gateway.gateway_fakes import CALL, CHAT_TOOLS, MESSAGES_TOOLS, serve
from tests.gateway.sdk_values import matrix

pytestmark = pytest.mark.slow

REPLY = f"<think>hm</think>Let me see.{CALL}"
USER: Any = {"role": "user", "content": "Begin."}
RESPONSES_TOOLS = [{"type": "function", "strict": None, **CHAT_TOOLS[0]["function"]}]
BASES: Mapping[str, dict[str, Any]] = {
    "chat": {"model": "policy", "messages": [USER], "tools": CHAT_TOOLS},
    "responses": {"model": "policy", "input": [USER], "tools": RESPONSES_TOOLS},
    "messages": {
        "model": "policy", "messages": [USER], "tools": MESSAGES_TOOLS, "max_tokens": 900,
    },
}  # fmt: skip
HISTORIES = {"chat": "messages", "responses": "input", "messages": "messages"}
DEFINITIONS = {
    "chat": CompletionCreateParamsNonStreaming,
    "responses": ResponseCreateParamsNonStreaming,
    "messages": MessageCreateParamsNonStreaming,
}
SERVED = {
    "text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "reasoning",
    "message", "function_call", "function_call_output", "tool_use", "tool_result", "search_result",
}  # fmt: skip
"""Kinds of content and of items that concern text and tools."""
EVENTS: Mapping[str, TypeAdapter[Any]] = {
    "chat": TypeAdapter(ChatCompletionChunk),
    "responses": TypeAdapter(ResponseStreamEvent),
    "messages": TypeAdapter(RawMessageStreamEvent),
}


def method_of(client: Any, wire: str) -> Any:
    return client.chat.completions.create if wire == "chat" else getattr(client, wire).create


def asked(wire: str, name: str, value: Any) -> dict[str, Any]:
    """The arguments of a request with one parameter set; a history ends with a user's message."""
    if name == HISTORIES[wire] and isinstance(value, list):
        value = [*value, USER]
    if name == "tools" and isinstance(value, list):
        value = [*value, *BASES[wire]["tools"]]
    return {**BASES[wire], name: value}


def check_answer(wire: str, answer: Any) -> None:
    """The answer fits the SDK's type, and says what was sampled."""
    type(answer).model_validate(answer.to_dict())
    if wire == "chat":
        (choice,) = answer.choices
        assert choice.finish_reason in ("stop", "length", "tool_calls")
        assert answer.usage.total_tokens > answer.usage.completion_tokens > 0
    elif wire == "responses":
        assert answer.status in ("completed", "incomplete")
        assert answer.usage.total_tokens > answer.usage.output_tokens > 0
    else:
        assert answer.stop_reason in ("end_turn", "max_tokens", "tool_use", "stop_sequence")
        assert answer.usage.output_tokens > 0


def check_events(wire: str, events: list[Any]) -> None:
    """Events fit the SDK's types, in order, and each id is the same all along."""
    for event in events:
        EVENTS[wire].validate_python(event.to_dict())
    if wire == "chat":
        assert events[0].choices[0].delta.role == "assistant"
        ends = [chunk.choices[0].finish_reason for chunk in events if chunk.choices]
        assert ends[-1] in ("stop", "length", "tool_calls")
        assert set(ends[:-1]) == {None}
        assert len({chunk.id for chunk in events}) == 1
        return
    kinds = [event.type for event in events]
    if wire == "responses":
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] in ("response.completed", "response.incomplete")
        assert kinds.count("response.output_item.added") == len(events[-1].response.output)
        assert events[0].response.id == events[-1].response.id
        return
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    opened: list[int] = []
    for event in events:
        if event.type == "content_block_start":
            assert event.index == len(opened)
            opened.append(event.index)
        elif event.type.startswith("content_block"):
            assert event.index == opened[-1]


def check_refused(wire: str, error: Any) -> str:
    """An error that the client does not try again, in the form of its wire; gives its message."""
    assert error.status_code in (400, 404), error
    if wire == "messages":
        assert error.body["type"] == "error"
        said = error.body["error"]
        assert set(said) == {"type", "message"}
    else:
        said = error.body
        assert set(said) == {"message", "type", "param", "code"}
    assert said["message"]
    return said["message"]


@dataclass
class Outcomes:
    """The end of many requests; all that is in neither list was served, and fits."""

    refused: list[tuple[str, Any, str]] = field(default_factory=list)
    """Parameter, value, and the message of the error."""
    misfits: list[tuple[str, Any, Exception]] = field(default_factory=list)
    """Answers and errors that do not fit the types or the order of the wire."""


def _one(method: Any, wire: str, arguments: Any, stream: bool) -> None:
    if stream:
        check_events(wire, list(method(**arguments, stream=True)))
    else:
        check_answer(wire, method(**arguments))


async def outcomes(
    client: Any, wire: str, values: Iterable[tuple[str, Any]], *, stream: bool, sync: bool
) -> Outcomes:
    """Send one request for each value."""
    found = Outcomes()
    method = method_of(client, wire)
    for name, value in values:
        arguments = asked(wire, name, value)
        try:
            if sync:
                await asyncio.to_thread(_one, method, wire, arguments, stream)
            elif stream:
                events = [event async for event in await method(**arguments, stream=True)]
                check_events(wire, events)
            else:
                check_answer(wire, await method(**arguments))
        except (openai.APIStatusError, anthropic.APIStatusError) as error:
            found.refused.append((name, value, check_refused(wire, error)))
        except (AssertionError, ValueError, openai.APIError, anthropic.APIError) as error:
            found.misfits.append((name, value, error))
    return found


def client_of(address: str, secret: str, wire: str, *, sync: bool) -> Any:
    if wire == "messages":
        kind = anthropic.Anthropic if sync else anthropic.AsyncAnthropic
        return kind(api_key=secret, base_url=f"{address}/s/{secret}", max_retries=0)
    kind = openai.OpenAI if sync else openai.AsyncOpenAI
    return kind(api_key=secret, base_url=f"{address}/s/{secret}/v1", max_retries=0)


def endless(chat: Any, replies: Any) -> Any:
    return serve(
        chat, replies, max_assistant_turns=10**5, max_user_turns=10**5,
        max_response_tokens=10**7, max_context_tokens=10**7,
    )  # fmt: skip


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", BASES)
async def test_every_documented_parameter_is_served_or_refused(chat, wire, stream, sync):
    served = endless(chat, [REPLY])
    values = matrix(DEFINITIONS[wire], ("model", "stream"))
    if stream or sync:  # read by the same code, so one value of each parameter will do
        values = list({name: (name, value) for name, value in reversed(values)}.values())
    async with listening(served.gateway) as address:
        client = client_of(address, served.session.secret, wire, sync=sync)
        try:
            found = await outcomes(client, wire, values, stream=stream, sync=sync)
        finally:
            await asyncio.to_thread(client.close) if sync else await client.close()
    assert found.misfits == []
    # Images and files, and what only the provider could have run.
    assert [one for one in found.refused if not _is_no_text_or_tool(*one)] == []
    assert len(served.engine.requests) > 10


def _is_no_text_or_tool(name: str, value: Any, message: str) -> bool:
    if name in ("n", "previous_response_id", "top_logprobs"):
        return value == 7 or "no answer of this session" in message
    if name == "functions":
        return "offer them as tools" in message  # their older form
    if "parameters is 'anything'" in message:
        return True  # which the SDK's type leaves open
    if "call_id is None" in message:
        return True  # a result that names no call
    kind = re.search(r"type is '(\w+)'", message)
    return "reads text only" in message or (kind is not None and kind[1] not in SERVED)


async def test_tokens_are_counted_whatever_a_request_holds(chat):
    served = endless(chat, [REPLY])
    async with listening(served.gateway) as address:
        client = client_of(address, served.session.secret, "messages", sync=False)
        counted, refused = 0, []
        for name, value in matrix(MessageCountTokensParams, ("model",)):
            arguments = {**asked("messages", name, value)}
            del arguments["max_tokens"]
            try:
                counted += (await client.messages.count_tokens(**arguments)).input_tokens > 0
            except anthropic.BadRequestError as error:
                refused.append((name, value, check_refused("messages", error)))
        await client.close()
    assert [one for one in refused if not _is_no_text_or_tool(*one)] == []
    assert counted > 60
    assert served.engine.requests == []


async def test_documents_and_search_results_that_are_text_are_read(chat):
    """Fails if a document of plain text is refused as a file, or left out of the prompt."""
    served = endless(chat, [REPLY])
    source = {"type": "text", "media_type": "text/plain", "data": "plain document"}
    parts = [{"type": "text", "text": "part of a document"}]
    content: Any = [
        {"type": "document", "source": source},
        {"type": "document", "source": {"type": "content", "content": parts}},
        {"type": "search_result", "source": "x", "title": "y",
         "content": [{"type": "text", "text": "found text"}]},
    ]  # fmt: skip
    use = {"type": "tool_use", "id": "c", "name": "add", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": content[2:]}
    for messages in (
        [{"role": "user", "content": content}],
        [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}],
    ):
        status, answer = await served.post("messages", {**BASES["messages"], "messages": messages})
        assert status == 200, answer
    first, second = (
        bytes(token for token in request.prompt_ids if token < 256).decode()
        for request in served.engine.requests
    )
    assert "plain document\npart of a document\nfound text" in first
    assert "found text" in second
    file = {"type": "document", "source": {"type": "base64", "data": "", "media_type": "x"}}
    body = {**BASES["messages"], "messages": [{"role": "user", "content": [file]}]}
    status, answer = await served.post("messages", body)
    assert status == 400
    assert "reads text only" in answer["error"]["message"]
