"""Conversations as ShareGPT and LLaMA-Factory write them: a list of `from` and `value`.

Calls stand in messages of their own (`function_call`): JSON of one call or of several. Such a
message and the assistant's text right before it are one turn, as a model samples them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentrl.data.messages import messages_of
from agentrl.errors import DataError, choices
from agentrl.types import Message, Role

_CALL = "function_call"
_SPEAKERS: Mapping[str, Role] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    _CALL: "assistant",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
}


def sharegpt_messages(where: str, value: Any) -> tuple[Message, ...]:
    """The messages of a column `conversations`; also of one with `role` and `content`.

    Raises:
        DataError: no list, an unknown speaker, or a call that is no JSON; names the message.
    """
    first = value[0] if isinstance(value, list) and value else None
    if not isinstance(first, Mapping) or "from" not in first:
        return messages_of(where, value, "conversation")
    messages: list[Message] = []
    open_turn = False
    for number, entry in enumerate(value):
        at = f"{where}: message {number} of the conversation"
        speaker, text = _entry(at, entry)
        if speaker != _CALL:
            role = _SPEAKERS[speaker]
            messages.append(Message(role=role, content=_bare(text) if role == "tool" else text))
            open_turn = role == "assistant"
            continue
        entries = {"role": "assistant", "content": "", "tool_calls": _calls(at, text)}
        (made,) = messages_of(at, [entries], "call")
        if open_turn:
            said = messages.pop()
            calls = (*said.tool_calls, *made.tool_calls)
            made = replace(made, content=said.content, tool_calls=calls)
        known = enumerate(made.tool_calls)
        calls = tuple(replace(call, id=f"call_{number}_{index}") for index, call in known)
        messages.append(replace(made, tool_calls=calls))
        open_turn = True
    return tuple(messages)


def _entry(at: str, entry: Any) -> tuple[str, str]:
    speaker, text = (
        (entry.get("from"), entry.get("value")) if isinstance(entry, Mapping) else (0, 0)
    )
    if not isinstance(speaker, str) or not isinstance(text, str):
        raise DataError(f"{at} is {ascii(entry)[:80]}; expected an object of texts from and value")
    if speaker not in _SPEAKERS:
        raise DataError(f"{at}: from {choices(speaker, _SPEAKERS)}")
    return speaker, text


def _calls(at: str, text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataError(
            f"{at}: {_CALL} is no JSON ({error}): {ascii(text)[:60]}; expected "
            '{"name": ..., "arguments": {...}} or a list of such'
        ) from None
    return found if isinstance(found, list) else [found]


def _bare(text: str) -> str:
    """A result without the tags that a template puts around it."""
    inner = text.strip()
    opening, closing = "<tool_response>", "</tool_response>"
    if inner.startswith(opening) and inner.endswith(closing) and inner.count(opening) == 1:
        return inner.removeprefix(opening).removesuffix(closing).strip("\n")
    return text
