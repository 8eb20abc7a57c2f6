"""Chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from agentrl.gateway.known import KnownParts
from agentrl.gateway.records import MODEL, RequestRefused, TurnAnswer, TurnRequest
from agentrl.gateway.wires.demands import free_form, no_others, one_answer, written_log_probs
from agentrl.gateway.wires.fields import (
    call_of,
    flag_at,
    function_tool,
    known_elsewhere,
    list_at,
    message_of,
    object_in,
    stops_at,
    text_call,
    text_input,
    text_tool,
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
        no_others(body)
        free_form(body.get("response_format"), "response_format")
        if body.get("functions"):
            raise wrong("functions", body["functions"], "nothing; offer them as tools")
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
            log_probs=flag_at(body, "logprobs", default=False),
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
            texts = _text_tools(body)
            said["tool_calls"] = [_call(call, texts) for call in answer.calls]
        choice = {
            "index": 0,
            "message": said,
            "logprobs": _log_probs(answer),
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

        def chunk(
            delta: Mapping[str, Any], finish: str | None = None, log_probs: Any = None
        ) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": log_probs, "finish_reason": finish}
            return event({**head, "choices": [choice], **extra})

        yield chunk({"role": "assistant", "content": ""}, log_probs=_log_probs(answer))
        if answer.reasoning:
            yield chunk({"reasoning_content": answer.reasoning})
        if answer.text:
            yield chunk({"content": answer.text})
        texts = _text_tools(body) if answer.calls else ()
        for number, call in enumerate(answer.calls):
            whole = _call(call, texts)
            kind = whole["type"]
            (given,) = whole[kind].keys() - {"name"}
            begun = {**whole, kind: {"name": call.name, given: ""}}
            yield chunk({"tool_calls": [{"index": number, **begun}]})
            rest = {"index": number, kind: {given: whole[kind][given]}}
            yield chunk({"tool_calls": [rest]})
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
            kind = "custom" if object_in(entry, place).get("type") == "custom" else "function"
            said, inner = object_in(entry.get(kind), f"{place}.{kind}"), f"{place}.{kind}"
            call_id, name = entry.get("id"), said.get("name")
            calls.append(
                text_call(call_id, name, said.get("input"), inner)
                if kind == "custom"
                else call_of(call_id, name, said.get("arguments"), place)
            )
    return message_of(role, content, words, sees=sees, tool_calls=tuple(calls))


def _tools(body: Mapping[str, Any]) -> Iterator[Tool]:
    for at, entry in enumerate(list_at(body, "tools")):
        where = f"tools[{at}]"
        kind = object_in(entry, where).get("type", "function")
        if kind == "custom":
            custom = object_in(entry.get("custom"), f"{where}.custom")
            yield text_tool(custom.get("name"), custom.get("description"), f"{where}.custom")
            continue
        if known_elsewhere(kind):
            continue
        if kind != "function":
            raise wrong(f"{where}.type", kind, "'function' or 'custom'")
        function = object_in(entry.get("function"), f"{where}.function")
        yield function_tool(
            function.get("name"),
            function.get("description"),
            function.get("parameters"),
            f"{where}.function",
        )


def _text_tools(body: Mapping[str, Any]) -> Collection[str]:
    """Names of the tools that a request offers to be called with bare text."""
    entries = [entry for entry in list_at(body, "tools") if entry.get("type") == "custom"]
    return {str(entry["custom"].get("name")) for entry in entries}


def _call(call: ToolCall, texts: Collection[str]) -> dict[str, Any]:
    if call.name in texts:
        custom = {"name": call.name, "input": text_input(call)}
        return {"id": call.id, "type": "custom", "custom": custom}
    return openai_call(call.id, call.name, written_arguments(call))


def _log_probs(answer: TurnAnswer) -> dict[str, Any] | None:
    return {"content": written_log_probs(answer), "refusal": None} if answer.log_probs else None


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
