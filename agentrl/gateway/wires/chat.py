"""Chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from agentrl.gateway.known import KnownParts
from agentrl.gateway.records import MODEL, RequestRefused, TurnAnswer, TurnRequest
from agentrl.gateway.wires.fields import (
    call_of,
    flag_at,
    function_tool,
    list_at,
    message_of,
    object_in,
    one_answer,
    stops_at,
    tokens_at,
    written_arguments,
    wrong,
)
from agentrl.gateway.wires.openai_errors import openai_error
from agentrl.gateway.wires.wire import Wire, event
from agentrl.served.formats import OPENAI_END, openai_call, openai_usage
from agentrl.tool import Tool
from agentrl.types import Message, Role, ToolCall

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class ChatWire(Wire):
    """Reads and writes OpenAI's chat completions."""

    path = "chat/completions"
    history = "messages"

    def read(self, body: Mapping[str, Any], known: KnownParts) -> TurnRequest:
        """Read the request in a body; see `Wire.read`."""
        one_answer(body)
        choice = body.get("tool_choice")
        usage = body.get("stream_options")
        return TurnRequest(
            messages=tuple(
                known.messages(
                    list_at(body, "messages"), partial(_messages, sees=known.sees), "messages[{}]"
                )
            ),
            tools=known.tools(list_at(body, "tools"), lambda: _tools(body)),
            calls=choice != "none",
            parallel=flag_at(body, "parallel_tool_calls", default=True),
            max_tokens=tokens_at(body, "max_completion_tokens", "max_tokens"),
            stop=stops_at(body, "stop"),
            stream=flag_at(body, "stream", default=False),
            stream_usage=isinstance(usage, dict) and usage.get("include_usage") is True,
        )

    def write(self, answer: TurnAnswer, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write the whole answer; see `Wire.write`."""
        said: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text or (None if answer.calls else ""),
            "refusal": None,
        }
        if answer.reasoning:
            said["reasoning_content"] = answer.reasoning
        if answer.calls:
            said["tool_calls"] = [_call(call) for call in answer.calls]
        choice = {
            "index": 0,
            "message": said,
            "logprobs": None,
            "finish_reason": OPENAI_END[answer.finish],
        }
        return {
            **_head(answer, body, "chat.completion"),
            "choices": [choice],
            "usage": _usage(answer),
        }

    def events(
        self, answer: TurnAnswer, request: TurnRequest, body: Mapping[str, Any]
    ) -> Iterator[bytes]:
        """Write the answer as server-sent events; see `Wire.events`."""
        head = _head(answer, body, "chat.completion.chunk")
        extra = {"usage": None} if request.stream_usage else {}

        def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return event({**head, "choices": [choice], **extra})

        yield chunk({"role": "assistant", "content": ""})
        if answer.reasoning:
            yield chunk({"reasoning_content": answer.reasoning})
        if answer.text:
            yield chunk({"content": answer.text})
        for number, call in enumerate(answer.calls):
            whole = _call(call)
            arguments = whole["function"]["arguments"]
            begun = {**whole, "function": {"name": call.name, "arguments": ""}}
            yield chunk({"tool_calls": [{"index": number, **begun}]})
            yield chunk({"tool_calls": [{"index": number, "function": {"arguments": arguments}}]})
        yield chunk({}, OPENAI_END[answer.finish])
        if request.stream_usage:
            yield event({**head, "choices": [], "usage": _usage(answer)})
        yield event("[DONE]")

    def error(self, refused: RequestRefused) -> tuple[int, dict[str, Any]]:
        """Write the status and body of an error; see `Wire.error`."""
        return openai_error(refused)


def _messages(item: Any, where: str, *, sees: bool) -> Iterator[Message]:
    yield _message(object_in(item, where), where, sees=sees)


def _message(item: Mapping[str, Any], where: str, *, sees: bool) -> Message:
    role = _ROLES.get(item.get("role", "")) if isinstance(item.get("role"), str) else None
    if role is None:
        raise wrong(f"{where}.role", item.get("role"), f"one of {', '.join(_ROLES)}")
    content, words = item.get("content"), f"{where}.content"
    if role == "tool":
        call_id = item.get("tool_call_id")
        return message_of(
            role,
            content,
            words,
            sees=sees,
            tool_call_id=call_id if isinstance(call_id, str) else None,
            name=item.get("name") if isinstance(item.get("name"), str) else None,
        )
    calls: list[ToolCall] = []
    if role == "assistant":
        for at, entry in enumerate(list_at(item, "tool_calls")):
            place = f"{where}.tool_calls[{at}]"
            function = object_in(object_in(entry, place).get("function"), f"{place}.function")
            calls.append(
                call_of(entry.get("id"), function.get("name"), function.get("arguments"), place)
            )
    return message_of(role, content, words, sees=sees, tool_calls=tuple(calls))


def _tools(body: Mapping[str, Any]) -> Iterator[Tool]:
    for at, entry in enumerate(list_at(body, "tools")):
        where = f"tools[{at}]"
        if object_in(entry, where).get("type", "function") != "function":
            continue  # run by the provider; there is nothing here that could
        function = object_in(entry.get("function"), f"{where}.function")
        yield function_tool(
            function.get("name"),
            function.get("description"),
            function.get("parameters"),
            f"{where}.function",
        )


def _call(call: ToolCall) -> dict[str, Any]:
    return openai_call(call.id, call.name, written_arguments(call))


def _head(answer: TurnAnswer, body: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": kind,
        "created": int(time.time()),
        "model": body.get("model") or MODEL,
        "system_fingerprint": None,
    }


def _usage(answer: TurnAnswer) -> dict[str, Any]:
    return openai_usage(answer.prompt_tokens, answer.sampled_tokens, cached=answer.cached_tokens)
