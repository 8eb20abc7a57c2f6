"""The two wire formats, OpenAI's chat completions and Anthropic's messages, part by part.

The gateway writes what the clients read, and reads what they write: how each format spells a call,
its result, a tool, the end of a turn and its tokens stands here once. What a part means to one side
alone (how strictly it reads, what it sends beside) stays with that side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentrl.types.thoughts import split_parts, split_served

Api = Literal["openai", "anthropic"]
"""Wire formats: OpenAI's chat completions and Anthropic's messages."""
TurnEnd = Literal["stop", "length", "calls"]
"""Why a turn ended: by itself, at its limit of tokens, or with calls."""

OPENAI_END: Mapping[TurnEnd, str] = {"stop": "stop", "length": "length", "calls": "tool_calls"}
"""`finish_reason` of a choice."""
ANTHROPIC_END: Mapping[TurnEnd, str] = {
    "stop": "end_turn", "length": "max_tokens", "calls": "tool_use",
}  # fmt: skip
"""`stop_reason` of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCall:
    """A call in a response."""

    id: Any
    """Given by the server; None where it gives none."""
    name: Any
    """Name of the function."""
    arguments: Any
    """As they came: JSON text in OpenAI's format, an object in Anthropic's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireTurn:
    """The turn in a response."""

    text: str
    """Its words."""
    thought: str
    """What was thought before them; empty where the server does not report it."""
    calls: tuple[WireCall, ...]
    """Its calls."""
    truncated: bool
    """Whether it ended at its limit of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Tokens of one response, as the server counts them."""

    prompt: int | None
    """Tokens read; None where it does not report them."""
    completion: int | None
    """Tokens written; None where it does not report them."""


def openai_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a message; its arguments are JSON text."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def openai_usage(prompt: int, sampled: int, *, cached: int) -> dict[str, Any]:
    """Tokens of a response."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def anthropic_call(call_id: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The block of a call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": dict(arguments)}


def anthropic_result(call_id: str | None, text: str) -> dict[str, Any]:
    """The block with the result of a call, which stands in a message of the user."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": text}


def anthropic_tool(function: Mapping[str, Any]) -> dict[str, Any]:
    """A tool that is offered, from the `function` of its schema in OpenAI's form."""
    return {
        "name": function["name"],
        "description": function.get("description", ""),
        "input_schema": function.get("parameters") or {"type": "object"},
    }


def anthropic_usage(prompt: int, sampled: int, *, cached: int) -> dict[str, Any]:
    """Tokens of a response; those that its prompt cache held are not part of `input_tokens`."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": sampled,
    }


def add_blocks(messages: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    """Add blocks to Anthropic's messages, whose roles take turns: to the last of the same role."""
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    elif blocks:
        messages.append({"role": role, "content": blocks})


def read_wire_turn(api: Api, answer: Any) -> WireTurn:
    """The turn in a response.

    Raises:
        ValueError: it is not a response of this format.
    """
    try:
        return _READ[api](answer)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"not a response of the {api} format") from error


def count_tokens(api: Api, answer: Any) -> TokenCounts:
    """Tokens of a response, of whatever form it is."""
    usage = answer.get("usage") if isinstance(answer, Mapping) else None
    if api == "openai":
        return TokenCounts(
            prompt=_count(usage, "prompt_tokens"), completion=_count(usage, "completion_tokens")
        )
    read = _count(usage, "input_tokens")
    if read is not None:
        for part in ("cache_creation_input_tokens", "cache_read_input_tokens"):
            read += _count(usage, part) or 0
    return TokenCounts(prompt=read, completion=_count(usage, "output_tokens"))


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, Mapping) else None
    return value if type(value) is int and value >= 0 else None


def _read_openai(answer: Any) -> WireTurn:
    choice = answer["choices"][0]
    message = choice["message"]
    parted, text = split_parts(message.get("content") or "")
    if isinstance(text, list) and all(isinstance(part, Mapping) for part in text):
        text = "".join(str(part.get("text") or "") for part in text)
    thought = message.get("reasoning_content") or message.get("reasoning") or parted
    if not isinstance(text, str) or not isinstance(thought, str):
        raise ValueError("the content of the answer is no text")
    if not thought:  # a server without a parser of thoughts leaves them in the text
        thought, text = split_served(text)
    return WireTurn(
        text=text,
        thought=thought,
        calls=tuple(
            WireCall(
                id=one.get("id"),
                name=one["function"]["name"],
                arguments=one["function"].get("arguments"),
            )
            for one in message.get("tool_calls") or ()
        ),
        truncated=choice.get("finish_reason") == OPENAI_END["length"],
    )


def _read_anthropic(answer: Any) -> WireTurn:
    text, thought, calls = "", "", []
    for block in answer["content"]:
        if block["type"] == "text":
            text += block["text"]
        elif block["type"] == "thinking":
            thought += block["thinking"]
        elif block["type"] == "tool_use":
            calls.append(WireCall(id=block.get("id"), name=block["name"], arguments=block["input"]))
    truncated = answer.get("stop_reason") == ANTHROPIC_END["length"]
    return WireTurn(text=text, thought=thought, calls=tuple(calls), truncated=truncated)


_READ: Mapping[Api, Callable[[Any], WireTurn]] = {
    "openai": _read_openai,
    "anthropic": _read_anthropic,
}
