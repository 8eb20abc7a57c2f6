"""Prompts and messages as sources of data write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from agentrl.data.pictures import IMAGE_PARTS, RowImages
from agentrl.data.plain import plain
from agentrl.errors import DataError, choices
from agentrl.types import Message, Role, ToolCall
from agentrl.types.thoughts import split_parts, split_served, split_thought, written_thought


def prompt_of(where: str, value: Any, images: RowImages | None = None) -> str | tuple[Message, ...]:
    """A prompt: text, or messages.

    Args:
        where: file and row, for messages of errors.
        value: as the source gives it.
        images: of the row; None refuses any.

    Raises:
        DataError: it is empty or something else; names the place and what was there.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str):
        if not value.strip():
            raise DataError(f"{where}: the prompt is empty")
        shown = (images.message("user", value),) if images else ()
        shown = images.finished(shown) if images else shown
        return shown if any(said.images for said in shown) else value
    messages = messages_of(where, value, "prompt", images)
    return images.finished(messages) if images else messages


def messages_of(
    where: str, value: Any, part: str, images: RowImages | None = None
) -> tuple[Message, ...]:
    """The messages of one part of a row, as OpenAI's chat API writes them.

    Reasoning in a key of its own (`reasoning_content`, `reasoning`, `thinking`), or in a part of
    the content, opens the content of an assistant's message as `<think>` text.

    Args:
        where: file and row, for messages of errors.
        value: as the source gives it.
        part: which part it is, as in `prompt` or `chosen`.
        images: of the row; None refuses any.

    Raises:
        DataError: not a list of messages, or an empty one; names the place and what was there.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        raise DataError(
            f"{where}: the {part} is {type(value).__name__} {ascii(value)[:80]}; expected text "
            "or a list of messages with role and content"
        )
    if not value:
        raise DataError(f"{where}: the {part} is an empty list of messages")
    return tuple(
        _message(f"{where}: message {index} of the {part}", message, images)
        for index, message in enumerate(value)
    )


def _message(where: str, value: Any, images: RowImages | None) -> Message:
    if isinstance(value, Message):
        return value
    if not isinstance(value, Mapping):
        raise DataError(
            f"{where} is {type(value).__name__} {ascii(value)[:80]}; expected an object with role "
            "and content"
        )
    role: Any = value.get("role")
    if role == "developer":  # what OpenAI calls the system of newer models
        role = "system"
    if role not in get_args(Role):
        raise DataError(f"{where}: role {choices(str(role), get_args(Role))}")
    calls = value.get("tool_calls")
    if calls is not None and hasattr(calls, "tolist"):
        calls = calls.tolist()
    if not isinstance(calls, (list, tuple, type(None))):
        raise DataError(f"{where}: tool_calls is {type(calls).__name__}; expected a list")
    given, thought = value.get("content"), ""
    if role == "assistant":
        parted, given = split_parts(given)
        thought = _thought(value) or written_thought(parted)
    content = _content(where, given, optional=bool(calls or thought), images=images is not None)
    said = Message(role=role, content=content if isinstance(content, str) else "")
    if images is not None:
        said = images.message(role, content)
    return Message(
        role=role,
        content=_with_thought(thought, said.content),
        images=said.images,
        tool_calls=tuple(_call(where, n, call) for n, call in enumerate(calls or ())),
        tool_call_id=value.get("tool_call_id"),
        name=value.get("name"),
    )


_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


def _thought(value: Mapping[str, Any]) -> str:
    found = (text for name in _THOUGHTS if isinstance(text := value.get(name), str))
    return written_thought(next(filter(str.strip, found), ""))


def _with_thought(thought: str, content: str) -> str:
    """Content behind a thought of its own key, which the content may hold as well."""
    own, words = split_served(content)
    if own and own == split_thought(thought)[0]:
        return content
    return thought + (content if own or not thought else words)


def _content(
    where: str, value: Any, *, optional: bool, images: bool
) -> str | list[Mapping[str, Any]]:
    if isinstance(value, str):
        return value
    if value is None and optional:
        return ""
    if isinstance(value, (list, tuple)):
        parts = [part for part in value if isinstance(part, Mapping)]
        kinds = {str(part.get("type")) for part in parts}
        known = {"text", *(IMAGE_PARTS if images else ())}
        if len(parts) == len(value) and kinds <= {"text"}:
            return "".join(str(part.get("text") or "") for part in parts)
        if len(parts) == len(value) and kinds <= known:
            return parts
        raise DataError(
            f"{where}: content parts of type {sorted(kinds - known) or 'unknown'}; expected "
            f"{', '.join(sorted(known))}"
        )
    raise DataError(f"{where}: content is {type(value).__name__}; expected text")


def _call(where: str, index: int, value: Any) -> ToolCall:
    function = value.get("function", value) if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(
            f"{where}: tool call {index} has no name; expected "
            '{"function": {"name": ..., "arguments": ...}}'
        )
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = plain(json.loads(arguments))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: arguments of tool call {index}: {error}") from None
    if not isinstance(arguments, Mapping):
        raise DataError(
            f"{where}: arguments of tool call {index} are {type(arguments).__name__}; expected an "
            "object"
        )
    return ToolCall(
        id=str(value.get("id") or f"call_{index}"),
        name=function["name"],
        arguments=plain(arguments),
        raw="",
    )


def with_system(where: str, system: Any, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Messages behind the text of a column `system`, where that is a text and not there already.

    Raises:
        DataError: they begin with another system text.
    """
    if not isinstance(system, str) or not system:
        return messages
    first = messages[0]
    if first.role != "system":
        return (Message(role="system", content=system), *messages)
    if first.content != system:
        raise DataError(
            f"{where}: the column system and the first message are two system texts, "
            f"{ascii(system)[:40]} and {ascii(first.content)[:40]}; expected one"
        )
    return messages
