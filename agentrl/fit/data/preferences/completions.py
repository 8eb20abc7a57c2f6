"""Completions and conversations of a row, as texts and as messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentrl.data.messages import messages_of
from agentrl.errors import DataError
from agentrl.types import Completion, Message

_TURN = re.compile(r"\n\n(Human|Assistant): ?")


def completion_of(where: str, value: Any, part: str, prompt: tuple[Message, ...]) -> Completion:
    """A completion: text, the assistant's message, or messages with or without the prompt.

    Raises:
        DataError: the assistant does not speak first after the prompt.
    """
    if isinstance(value, str):
        return Completion(messages=(Message(role="assistant", content=value),))
    messages = messages_of(where, [value] if isinstance(value, Mapping) else value, part)
    if messages[: len(prompt)] == prompt:
        messages = messages[len(prompt) :]
    if not messages or messages[0].role != "assistant":
        got = f"role {messages[0].role!r}" if messages else "nothing after the prompt"
        raise DataError(
            f"{where}: {part} begins with {got}; expected the assistant's message, or the messages "
            "of the prompt and then the assistant's"
        )
    return Completion(messages=messages)


def conversation_of(where: str, value: Any, part: str) -> tuple[Message, ...]:
    """A conversation: messages, or the text of hh-rlhf with its `Human:` and `Assistant:`.

    Raises:
        DataError: text without such turns, or broken messages.
    """
    if not isinstance(value, str):
        return messages_of(where, value, part)
    pieces = _TURN.split(value)
    if len(pieces) < 3 or pieces[0].strip():
        raise DataError(
            f"{where}: {part} is text without a prompt beside it; expected a column prompt, a list "
            "of messages, or turns that begin with '\\n\\nHuman:' and '\\n\\nAssistant:'"
        )
    roles = {"Human": "user", "Assistant": "assistant"}
    return tuple(
        Message(role=roles[who], content=text.strip())  # pyright: ignore[reportArgumentType]
        for who, text in zip(pieces[1::2], pieces[2::2], strict=True)
    )
