"""OpenAI's responses: `POST /v1/responses`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
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
    text_at,
    text_call,
    text_input,
    text_of,
    text_tool,
    tokens_at,
    written_arguments,
    wrong,
)
from agentrl.gateway.wires.openai_errors import openai_error
from agentrl.gateway.wires.wire import Wire, event
from agentrl.tool import Tool
from agentrl.types import Message, Role

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_PREFIX = "resp_"
_LOG_PROBS = "message.output_text.logprobs"
"""What a request includes where it asks for the log-probabilities of the answer."""


class ResponsesWire(Wire):
    """Reads and writes OpenAI's responses."""

    path = "responses"
    history = "input"

    def read(self, body: Mapping[str, Any], known: KnownParts) -> TurnRequest:
        """Read the request in a body; see `Wire.read`."""
        one_answer(body)
        no_others(body)
        free_form(object_in(body.get("text") or {}, "text").get("format"), "text.format")
        messages: list[Message] = []
        if instructions := text_of(body.get("instructions"), "instructions"):
            messages.append(known.system(instructions))
        given = body.get("input")
        if isinstance(given, str):
            messages.append(Message(role="user", content=given))
        else:
            messages += known.messages(
                list_at(body, "input"), partial(_messages, sees=known.sees), "input[{}]"
            )
        previous = body.get("previous_response_id") or ""
        if not isinstance(previous, str):
            raise wrong("previous_response_id", previous, "the id of an answer")
        return TurnRequest(
            messages=tuple(messages),
            tools=known.tools(list_at(body, "tools"), lambda: _tools(body)),
            calls=body.get("tool_choice") != "none",
            parallel=flag_at(body, "parallel_tool_calls", default=True),
            max_tokens=tokens_at(body, "max_output_tokens"),
            stop=stops_at(body, "stop"),
            log_probs=_LOG_PROBS in list_at(body, "include"),
            stream=flag_at(body, "stream", default=False),
            previous=previous.removeprefix(_PREFIX),
        )

    def write(self, answer: TurnAnswer, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write the whole answer; see `Wire.write`."""
        cut = answer.finish == "length"
        return {
            **_head(answer, body),
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": list(_output(answer, body)),
            "usage": _usage(answer),
        }

    def events(
        self, answer: TurnAnswer, request: TurnRequest, body: Mapping[str, Any]
    ) -> Iterator[bytes]:
        """Write the answer as server-sent events; see `Wire.events`."""
        number = 0

        def numbered(kind: str, **data: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number - 1, **data}, name=kind)

        begun = {**_head(answer, body), "status": "in_progress", "output": [], "usage": None}
        begun["incomplete_details"] = None
        yield numbered("response.created", response=begun)
        yield numbered("response.in_progress", response=begun)
        for index, item in enumerate(_output(answer, body)):
            place = {"output_index": index, "item_id": item["id"]}
            yield numbered("response.output_item.added", output_index=index, item=_begun(item))
            for kind, data in _parts(item):
                yield numbered(kind, **place, **data)
            yield numbered("response.output_item.done", output_index=index, item=item)
        whole = self.write(answer, body)
        yield numbered(f"response.{whole['status']}", response=whole)

    def error(self, refused: RequestRefused) -> tuple[int, dict[str, Any]]:
        """Write the status and body of an error; see `Wire.error`."""
        return openai_error(refused)

    def error_event(self, refused: RequestRefused) -> bytes:
        """Write an error into a stream; see `Wire.error_event`."""
        said = openai_error(refused)[1]["error"]
        # Some clients read the fields of the event, others what every stream of OpenAI has.
        fields = {name: said[name] for name in ("code", "message", "param")}
        return event({"type": "error", "sequence_number": 0, **fields, "error": said}, name="error")


def _messages(item: Any, where: str, *, sees: bool) -> Iterator[Message]:
    kind = object_in(item, where).get("type", "message")
    if kind == "message":
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise wrong(f"{where}.role", role, f"one of {', '.join(_ROLES)}")
        yield message_of(_ROLES[role], item.get("content"), f"{where}.content", sees=sees)
    elif kind == "function_call":
        call = call_of(item.get("call_id"), item.get("name"), item.get("arguments"), where)
        yield Message(role="assistant", content="", tool_calls=(call,))
    elif kind == "custom_tool_call":
        call = text_call(item.get("call_id"), item.get("name"), item.get("input"), where)
        yield Message(role="assistant", content="", tool_calls=(call,))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        yield message_of(
            "tool",
            item.get("output"),
            f"{where}.output",
            sees=sees,
            tool_call_id=text_at(item, "call_id", where),
        )
    elif kind != "reasoning":
        raise wrong(
            f"{where}.type",
            kind,
            "'message', 'function_call', 'function_call_output', 'custom_tool_call', "
            "'custom_tool_call_output' or 'reasoning'",
        )


def _tools(body: Mapping[str, Any]) -> Iterator[Tool]:
    for entry, where in _entries(list_at(body, "tools"), "tools"):
        kind, name = entry.get("type", "function"), entry.get("name")
        if kind == "custom":
            yield text_tool(name, entry.get("description"), where)
        elif kind == "function":
            yield function_tool(name, entry.get("description"), entry.get("parameters"), where)
        elif not known_elsewhere(kind):
            raise wrong(f"{where}.type", kind, "'function', 'custom' or 'namespace'")


def _entries(tools: Sequence[Any], where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """All tools, those of a namespace one by one, each with its place."""
    for at, entry in enumerate(tools):
        place = f"{where}[{at}]"
        if object_in(entry, place).get("type") == "namespace":
            yield from _entries(list_at(entry, "tools"), f"{place}.tools")
        else:
            yield entry, place


def _told(body: Mapping[str, Any]) -> Mapping[str, tuple[str, str]]:
    """Type and namespace of each tool by its name, as the request offers them."""
    found: dict[str, tuple[str, str]] = {}
    for entry in list_at(body, "tools"):
        space = entry.get("name", "") if entry.get("type") == "namespace" else ""
        for tool in list_at(entry, "tools") if space else (entry,):
            found[str(tool.get("name"))] = str(tool.get("type", "function")), str(space)
    return found


def _head(answer: TurnAnswer, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"{_PREFIX}{answer.id}",
        "object": "response",
        "created_at": int(time.time()),
        "model": body.get("model") or MODEL,
        "error": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": body.get("previous_response_id"),
        "temperature": None,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": None,
    }


def _output(answer: TurnAnswer, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if answer.reasoning:
        thought = {"type": "summary_text", "text": answer.reasoning}
        yield {"type": "reasoning", "id": f"rs_{answer.id}", "summary": [thought]}
    if answer.text or not answer.calls:
        part = {"type": "output_text", "text": answer.text, "annotations": []}
        part["logprobs"] = written_log_probs(answer)
        yield {
            "type": "message",
            "id": f"msg_{answer.id}",
            "role": "assistant",
            "status": "incomplete" if answer.finish == "length" else "completed",
            "content": [part],
        }
    told = _told(body) if answer.calls else {}
    for number, call in enumerate(answer.calls):
        kind, space = told.get(call.name, ("function", ""))
        custom = kind == "custom"
        given = {"input": text_input(call)} if custom else {"arguments": written_arguments(call)}
        yield {
            "type": "custom_tool_call" if custom else "function_call",
            "id": f"{'ctc' if custom else 'fc'}_{answer.id}{number:03d}",
            "call_id": call.id,
            "name": call.name,
            **given,
            **({"namespace": space} if space else {}),
            "status": "completed",
        }


def _begun(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item of the output before anything of it was sent."""
    empty: Mapping[str, Mapping[str, Any]] = {
        "reasoning": {"summary": []},
        "message": {"content": [], "status": "in_progress"},
        "function_call": {"arguments": "", "status": "in_progress"},
        "custom_tool_call": {"input": "", "status": "in_progress"},
    }
    return {**item, **empty[item["type"]]}


def _parts(item: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events between the beginning and the end of an item."""
    if item["type"] == "custom_tool_call":
        yield "response.custom_tool_call_input.delta", {"delta": item["input"]}
        yield "response.custom_tool_call_input.done", {"input": item["input"]}
        return
    if item["type"] == "function_call":
        arguments = item["arguments"]
        yield "response.function_call_arguments.delta", {"delta": arguments}
        done = {"arguments": arguments, "name": item["name"]}
        yield "response.function_call_arguments.done", done
        return
    thought = item["type"] == "reasoning"
    name = "reasoning_summary" if thought else "content"
    text_name = "reasoning_summary_text" if thought else "output_text"
    (part,) = item["summary"] if thought else item["content"]
    place = {"summary_index" if thought else "content_index": 0}
    more = {} if thought else {"logprobs": part["logprobs"]}
    yield (
        f"response.{name}_part.added",
        {**place, "part": {**part, "text": ""}},
    )
    yield f"response.{text_name}.delta", {**place, "delta": part["text"], **more}
    yield f"response.{text_name}.done", {**place, "text": part["text"], **more}
    yield f"response.{name}_part.done", {**place, "part": part}


def _usage(answer: TurnAnswer) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.sampled_tokens,
    }
