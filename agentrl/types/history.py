"""The checks of a history that an environment gives, before any of it becomes tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import choices
from agentrl.types import Message, Role

_ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")
_NOT_TEXT = ("images", "image", "audio", "files", "video")


def read_history(value: Any) -> tuple[Message, ...]:
    """The messages of a history that the model can be shown and go on from.

    Args:
        value: `Message` records, or dictionaries with `role` and `content` and, for a tool's
            message, `tool_call_id` and `name`.

    Raises:
        ValueError: one sentence: what is wrong, what is expected, and what to do.

    Example:
        >>> read_history([{"role": "user", "content": "So far: 3 files read."}])[0].role
        'user'
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(
            f"history is {type(value).__name__}, expected a list of messages; for one text give "
            'history=(Message(role="user", content=TEXT),)'
        )
    messages = tuple(_message(item, at) for at, item in enumerate(value))
    if not any(message.role == "user" for message in messages):
        roles = ", ".join(message.role for message in messages) or "no message"
        raise ValueError(
            f"history has no message of the user (roles: {roles}); begin it with what the model "
            "is asked to do"
        )
    if messages[-1].role == "assistant":
        raise ValueError(
            f"history ends with a message of the assistant, number {len(messages) - 1}; the model "
            "speaks next, so end it with a message of the user or a tool result"
        )
    _require_calls(messages)
    return messages


def _message(item: Any, at: int) -> Message:
    if isinstance(item, Message):
        content = item.content
        if isinstance(content, str):
            return item
    elif isinstance(item, Mapping):
        if more := [name for name in _NOT_TEXT if item.get(name)]:
            raise ValueError(
                f"history: message {at} holds {more[0]}; a language model is given text only, so "
                "describe it in words or leave it out"
            )
        content = item.get("content")
        if isinstance(content, str):
            return _read(item, content, at)
    else:
        raise ValueError(
            f"history: message {at} is {type(item).__name__}, expected Message or a dictionary "
            "with 'role' and 'content'"
        )
    if isinstance(content, Sequence):
        kinds = [str(part.get("type")) for part in content if isinstance(part, Mapping)]
        raise ValueError(
            f"history: the content of message {at} is a list of parts ({', '.join(kinds)[:80]}), "
            "expected text; join text parts, and leave images out: the model is given text only"
        )
    raise ValueError(
        f"history: the content of message {at} is {type(content).__name__}, expected text"
    )


def _read(item: Mapping[str, Any], content: str, at: int) -> Message:
    role: Role | None = next((one for one in _ROLES if item.get("role") == one), None)
    if role is None:
        got = str(item.get("role"))[:40]
        raise ValueError(f"history: message {at}: unknown role: {choices(got, _ROLES)}")
    if item.get("tool_calls"):
        raise ValueError(
            f"history: message {at} is a dictionary with tool_calls; take messages with calls from "
            "Action.history (set wants_history), where they are Message records"
        )
    return Message(
        role=role, content=content, tool_call_id=item.get("tool_call_id"), name=item.get("name")
    )


def _require_calls(messages: Sequence[Message]) -> None:
    """Check that each tool result stands behind the message that made its call."""
    calls: set[str] = set()
    for at, message in enumerate(messages):
        if message.role == "assistant":
            calls = {call.id for call in message.tool_calls}
        elif message.role == "tool" and message.tool_call_id not in calls:
            known = ", ".join(sorted(calls)[:5]) or "none"
            raise ValueError(
                f"history: message {at} is the result of call {str(message.tool_call_id)[:40]!r}, "
                f"but the assistant's message before it makes no such call (its calls: {known}); "
                "keep a result behind its call, or tell what it said in a message of the user"
            )
