"""Turns of a conversation with tools, in both wire formats, as pure functions from and to JSON.

For models that take part in a conversation, such as the one that answers side calls of agents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.served import wire
from agentrl.served.formats import (
    Api,
    WireCall,
    add_blocks,
    anthropic_call,
    anthropic_result,
    anthropic_tool,
    count_tokens,
    openai_call,
    read_wire_turn,
)
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
    """Tokens before it; 0 where the server does not report them."""
    sampled_tokens: int
    """Tokens of it; 0 where the server does not report them."""


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
    written = _anthropic_messages(messages) if anthropic else [openai_message(m) for m in messages]
    body = wire.request_body(settings, written, None)
    functions = [tool["function"] for tool in tools]
    if functions and anthropic:
        body["tools"] = [anthropic_tool(one) for one in functions]
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
    turn = read_wire_turn(settings.api, answer)
    calls = tuple(_call(settings.api, one) for one in turn.calls)
    if not calls and not turn.text.strip():
        raise ValueError("the answer has neither text nor calls")
    counts = count_tokens(settings.api, answer)
    return ServedTurn(
        text=turn.text.encode(errors="replace").decode(),
        calls=calls,
        truncated=turn.truncated,
        prompt_tokens=counts.prompt or 0,
        sampled_tokens=counts.completion or 0,
    )


def openai_message(message: Message) -> dict[str, Any]:
    """A message as chat completions have it, without its pictures."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = [
            openai_call(call.id, call.name, json.dumps(dict(call.arguments)))
            for call in message.tool_calls
        ]
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id
    return out


def _anthropic_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for message in messages:
        blocks: list[dict[str, Any]] = []
        if message.role == "system":
            out.append({"role": "system", "content": message.content})
            continue
        if message.role == "tool":
            blocks.append(anthropic_result(message.tool_call_id, message.content))
        elif message.content:
            blocks.append({"type": "text", "text": message.content})
        blocks += [
            anthropic_call(call.id, call.name, call.arguments) for call in message.tool_calls
        ]
        add_blocks(out, "assistant" if message.role == "assistant" else "user", blocks)
    return out


def _call(api: Api, call: WireCall) -> ToolCall:
    arguments = call.arguments
    if api == "openai":
        if not isinstance(arguments, str | None):
            raise ValueError("not a response of the openai format")
        try:
            arguments = json.loads(arguments or "{}")
        except RecursionError:
            raise ValueError("the arguments of a call are nested too deep") from None
    if call.id is None or not isinstance(arguments, Mapping) or not isinstance(call.name, str):
        raise ValueError("a call has no id, no name or no object of arguments")
    return ToolCall(id=str(call.id), name=call.name, arguments=dict(arguments), raw="")
