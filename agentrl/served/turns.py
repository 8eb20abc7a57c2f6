"""Turns of a conversation with tools, in both wire formats, as pure functions from and to JSON.

For models that take part in a conversation, such as the one that answers side calls of agents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.served import wire
from agentrl.served.settings import ServedSettings
from agentrl.types import Message, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTurn:
    """One turn of a served model."""

    text: str
    """Its words."""
    calls: tuple[ToolCall, ...]
    """Its calls."""
    truncated: bool
    """Whether it ended at its token limit."""
    prompt_tokens: int
    """Tokens before it; 0 where the server does not say."""
    sampled_tokens: int
    """Tokens of it; 0 where the server does not say."""


def turn_body(
    settings: ServedSettings,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]],
    max_tokens: int | None,
    stop: Sequence[str],
) -> dict[str, Any]:
    """Body of a request for the next turn.

    Args:
        settings: of the model.
        messages: the conversation.
        tools: schemas in OpenAI's form.
        max_tokens: most tokens of the turn, where that is less than the settings allow.
        stop: texts that end the turn.
    """
    known = settings.max_tokens
    if max_tokens is not None:
        settings = replace(settings, max_tokens=min(max_tokens, known or max_tokens))
    anthropic = settings.api == "anthropic"
    written = _anthropic_messages(messages) if anthropic else [_openai(m) for m in messages]
    body = wire.request_body(settings, written, None)
    functions = [tool["function"] for tool in tools]
    if functions and anthropic:
        body["tools"] = [
            {
                "name": one["name"],
                "description": one.get("description", ""),
                "input_schema": one["parameters"],
            }
            for one in functions
        ]
    elif functions:
        body["tools"] = [dict(tool) for tool in tools]
    if stop:
        body["stop_sequences" if anthropic else "stop"] = list(stop)
    return body


def read_served_turn(settings: ServedSettings, answer: Any) -> ServedTurn:
    """The turn in a response.

    Raises:
        ValueError: it is not a response of this wire format, or it says nothing.
    """
    read = _anthropic_turn if settings.api == "anthropic" else _openai_turn
    try:
        text, calls, truncated = read(answer)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"not a response of the {settings.api} format") from error
    if not calls and not text.strip():
        raise ValueError("the answer has neither text nor calls")
    counts = wire.count_tokens(settings, answer)
    return ServedTurn(
        text=text.encode(errors="replace").decode(),
        calls=calls,
        truncated=truncated,
        prompt_tokens=counts.prompt or 0,
        sampled_tokens=counts.completion or 0,
    )


def _openai(message: Message) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id
    return out


def _openai_turn(answer: Any) -> tuple[str, tuple[ToolCall, ...], bool]:
    choice = answer["choices"][0]
    message = choice["message"]
    calls = tuple(
        _call(one["id"], one["function"]["name"], json.loads(one["function"]["arguments"] or "{}"))
        for one in message.get("tool_calls") or ()
    )
    return message.get("content") or "", calls, choice.get("finish_reason") == "length"


def _anthropic_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for message in messages:
        blocks: list[dict[str, Any]] = []
        if message.role == "system":
            out.append({"role": "system", "content": message.content})
            continue
        if message.role == "tool":
            used = message.tool_call_id
            blocks.append({"type": "tool_result", "tool_use_id": used, "content": message.content})
        elif message.content:
            blocks.append({"type": "text", "text": message.content})
        blocks += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
            for call in message.tool_calls
        ]
        role = "assistant" if message.role == "assistant" else "user"
        if out and out[-1]["role"] == role:
            out[-1]["content"] += blocks
        else:
            out.append({"role": role, "content": blocks})
    return out


def _anthropic_turn(answer: Any) -> tuple[str, tuple[ToolCall, ...], bool]:
    blocks = answer["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = tuple(
        _call(block["id"], block["name"], block["input"])
        for block in blocks
        if block["type"] == "tool_use"
    )
    return text, calls, answer.get("stop_reason") == "max_tokens"


def _call(call_id: Any, name: Any, arguments: Any) -> ToolCall:
    if not isinstance(arguments, Mapping) or not isinstance(name, str):
        raise ValueError("a call has no name or no object of arguments")
    return ToolCall(id=str(call_id), name=name, arguments=dict(arguments), raw="")
