"""Anthropic's messages: `POST /v1/messages`, and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from agentrl.gateway.known import KnownParts
from agentrl.gateway.records import MODEL, RefusalReason, RequestRefused, TurnAnswer, TurnRequest
from agentrl.gateway.wires.demands import free_form
from agentrl.gateway.wires.fields import (
    call_of,
    flag_at,
    function_tool,
    is_image,
    list_at,
    message_of,
    object_in,
    stops_at,
    text_at,
    text_of,
    tokens_at,
    written_arguments,
    wrong,
)
from agentrl.gateway.wires.wire import Wire, event, said_by
from agentrl.served.formats import ANTHROPIC_END, anthropic_call, anthropic_usage
from agentrl.tool import Tool
from agentrl.types import Message, Role, ToolCall

_FULL = "prompt is too long: {tokens} tokens > {most} maximum"
_STATUS: Mapping[RefusalReason, tuple[int, str]] = {
    RefusalReason.BAD_REQUEST: (400, "invalid_request_error"),
    RefusalReason.NOT_TEXT: (400, "invalid_request_error"),
    RefusalReason.UNKNOWN_SESSION: (401, "authentication_error"),
    RefusalReason.NO_ACCESS: (401, "authentication_error"),
    RefusalReason.UNKNOWN_MODEL: (404, "not_found_error"),
    RefusalReason.UNKNOWN_PATH: (404, "not_found_error"),
    RefusalReason.TOO_LARGE: (413, "request_too_large"),
    RefusalReason.TOO_LATE: (408, "timeout_error"),
    RefusalReason.CONTEXT_FULL: (400, "invalid_request_error"),
    RefusalReason.LIMIT: (400, "invalid_request_error"),
    RefusalReason.BUSY: (429, "rate_limit_error"),
    RefusalReason.ENGINE: (500, "api_error"),
}
_BILLING = "x-anthropic-billing-header"
"""Begins a block of the system prompt that Claude Code writes anew for each request."""


class MessagesWire(Wire):
    """Reads and writes Anthropic's messages."""

    path = "messages"
    history = "messages"

    def read(self, body: Mapping[str, Any], known: KnownParts) -> TurnRequest:
        """Read the request in a body; see `Wire.read`."""
        most = tokens_at(body, "max_tokens")
        if most is None:
            raise wrong("max_tokens", None, "a whole number of at least 1, which must be given")
        return self._read(body, known, most)

    def read_count(self, body: Mapping[str, Any], known: KnownParts) -> TurnRequest:
        """The conversation whose tokens are to be counted.

        Raises:
            RequestRefused: as `read`.
        """
        return self._read(body, known, None)

    def _read(self, body: Mapping[str, Any], known: KnownParts, most: int | None) -> TurnRequest:
        free_form(body.get("output_format"), "output_format")
        config = object_in(body.get("output_config") or {}, "output_config")
        free_form(config.get("format"), "output_config.format")
        messages: list[Message] = []
        if system := _system(body.get("system")):
            messages.append(known.system(system))
        messages += known.messages(
            list_at(body, "messages"), partial(_messages, sees=known.sees), "messages.{}"
        )
        given = body.get("tool_choice")
        choice = object_in(given, "tool_choice") if given is not None else {}
        return TurnRequest(
            messages=tuple(messages),
            tools=known.tools(list_at(body, "tools"), lambda: _tools(body)),
            calls=choice.get("type") != "none",
            parallel=not flag_at(choice, "disable_parallel_tool_use", default=False),
            max_tokens=most,
            stop=stops_at(body, "stop_sequences"),
            stream=flag_at(body, "stream", default=False),
        )

    def write(self, answer: TurnAnswer, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write the whole answer; see `Wire.write`."""
        content: list[dict[str, Any]] = []
        if answer.reasoning:
            content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
        if answer.text:
            content.append({"type": "text", "text": answer.text})
        content += [anthropic_call(call.id, call.name, call.arguments) for call in answer.calls]
        return {**_head(answer, body), "content": content, **_end(answer), "usage": _usage(answer)}

    def events(
        self, answer: TurnAnswer, request: TurnRequest, body: Mapping[str, Any]
    ) -> Iterator[bytes]:
        """Write the answer as server-sent events; see `Wire.events`."""
        usage = _usage(answer)
        start = {
            **_head(answer, body),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": 0},
        }
        yield _event({"type": "message_start", "message": start})
        for index, (block, delta) in enumerate(_blocks(answer)):
            yield _event({"type": "content_block_start", "index": index, "content_block": block})
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
            yield _event({"type": "content_block_stop", "index": index})
        yield _event({"type": "message_delta", "delta": _end(answer), "usage": usage})
        yield _event({"type": "message_stop"})

    def error(self, refused: RequestRefused) -> tuple[int, dict[str, Any]]:
        """Write the status and body of an error; see `Wire.error`."""
        status, kind = _STATUS[refused.reason]
        return status, {
            "type": "error",
            "error": {"type": kind, "message": said_by(refused, full=_FULL)},
        }

    def error_event(self, refused: RequestRefused) -> bytes:
        """Write an error into a stream; see `Wire.error_event`."""
        return event(self.error(refused)[1], name="error")


def _system(value: Any) -> str:
    if isinstance(value, list):
        value = [
            block
            for block in value
            if not (isinstance(block, dict) and str(block.get("text", "")).startswith(_BILLING))
        ]
    return text_of(value, "system")


def _messages(item: Any, where: str, *, sees: bool) -> Iterator[Message]:
    """A message as ours: results of tools are messages of their own, in front of the words."""
    role, content = object_in(item, where).get("role"), item.get("content")
    known: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
    if not isinstance(role, str) or role not in known:
        raise wrong(f"{where}.role", role, "'user' or 'assistant'")
    if not isinstance(content, list):
        yield Message(role=known[role], content=text_of(content, f"{where}.content"))
        return
    words: list[Any] = []
    calls: list[ToolCall] = []
    for at, block in enumerate(content):
        place = f"{where}.content.{at}"
        kind = object_in(block, place).get("type")
        if kind == "tool_use":
            calls.append(call_of(block.get("id"), block.get("name"), block.get("input"), place))
        elif kind == "tool_result":
            yield message_of(
                "tool",
                block.get("content"),
                f"{place}.content",
                sees=sees,
                tool_call_id=text_at(block, "tool_use_id", place),
            )
        else:
            if not (sees and is_image(block)):
                text_of([block], place)  # refuses what is no text, and names its place
            words.append(block)
    said = message_of(known[role], words, f"{where}.content", sees=sees, tool_calls=tuple(calls))
    if said.content or calls:
        yield said


def _tools(body: Mapping[str, Any]) -> Iterator[Tool]:
    for at, entry in enumerate(list_at(body, "tools")):
        where = f"tools.{at}"
        if object_in(entry, where).get("type") not in (None, "custom"):
            continue  # run by the provider; there is nothing here that could
        yield function_tool(
            entry.get("name"),
            entry.get("description"),
            entry.get("input_schema"),
            where,
            schema_field="input_schema",
        )


def _blocks(answer: TurnAnswer) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    if answer.reasoning:
        thought = {"type": "thinking_delta", "thinking": answer.reasoning}
        yield {"type": "thinking", "thinking": "", "signature": ""}, thought
    if answer.text:
        yield {"type": "text", "text": ""}, {"type": "text_delta", "text": answer.text}
    for call in answer.calls:
        arguments = {"type": "input_json_delta", "partial_json": written_arguments(call)}
        yield anthropic_call(call.id, call.name, {}), arguments


def _head(answer: TurnAnswer, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model") or MODEL,
    }


def _end(answer: TurnAnswer) -> dict[str, Any]:
    stopped = answer.finish == "stop" and answer.stop_text is not None
    return {
        "stop_reason": "stop_sequence" if stopped else ANTHROPIC_END[answer.finish],
        "stop_sequence": answer.stop_text if stopped else None,
    }


def _usage(answer: TurnAnswer) -> dict[str, Any]:
    return anthropic_usage(answer.prompt_tokens, answer.sampled_tokens, cached=answer.cached_tokens)


def _event(data: Mapping[str, Any]) -> bytes:
    return event(data, name=data["type"])
