"""Messages by their meaning: what an agent may respell when it sends a conversation back.

An agent parses what it was served and writes it again, so spacing, the order of keys, fields that
are None, numbers such as `1.0`, white space at the ends of a text, empty messages and the order of
parallel results may differ. None of that changes what was said. Everything else is an edit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from agentrl.tool import Tool
from agentrl.types import CallStatus, Message, ToolCall
from agentrl.types.thoughts import split_thought

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat, ToolCallParser

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardMessage:
    """One message of a request, with its meaning."""

    message: Message
    """The message as it was sent."""
    key: Key
    """Equal for messages of one meaning."""
    answers: int | None = None
    """Of a tool result: position of its call in the assistant's message before it."""

    @property
    def spoken(self) -> bool:
        """True for a message of the assistant."""
        return self.message.role == "assistant"


def hear(
    messages: Iterable[Message], known: dict[int, HeardMessage] | None = None
) -> tuple[HeardMessage, ...]:
    """The messages with content, results of parallel calls in the order of the calls.

    Neighbouring messages of the assistant become one: some agents send its words and its calls
    apart.

    Args:
        messages: of a request.
        known: what was heard before, by the identity of the message; is filled.
    """
    heard: list[HeardMessage] = []
    calls: Mapping[str, int] = {}
    known = {} if known is None else known
    for message in _joined(messages):
        answers = None
        if message.role == "assistant":
            calls = {call.id: number for number, call in enumerate(message.tool_calls)}
        elif message.role == "tool":
            answers = calls.get(message.tool_call_id or "")
        found = known.get(id(message))
        # The one that is kept holds its message, so no other message has that identity.
        if found is None or found.answers != answers:
            found = HeardMessage(message=message, key=_key(message, answers), answers=answers)
            known[id(message)] = found
        heard.append(found)
    return tuple(_in_order_of_calls(heard))


def thought_and_words(
    chat: ChatFormat,
    parser: ToolCallParser | None,
    ids: Sequence[int],
    calls: Sequence[ToolCall],
) -> tuple[str, str]:
    """The thought of a turn and its words outside of these calls, without special tokens."""
    text = chat.decode_raw(ids)
    quotes = () if parser is None else parser.quotes(text)
    thought, words = split_thought(text, begun=chat.thought_opening, quotes=quotes)
    for call in calls:
        before, _, behind = words.partition(call.raw)
        words = before + behind
    return chat.drop_specials(thought), chat.drop_specials(words).strip()


def answer_key(text: str, calls: Sequence[ToolCall]) -> Key:
    """The meaning of a message of the assistant; ids of calls are compared beside it."""
    said = tuple(
        (call.name, call.raw if call.status is not CallStatus.OK else same_json(call.arguments))
        for call in calls
    )
    return "assistant", _same_text(text), said


def same_json(value: Any) -> str:
    """Text that is the same for JSON values of one meaning.

    Example:
        >>> same_json({"b": 1.0, "a": None}) == same_json({"b": 1})
        True
    """
    plain = _plain(value)
    try:
        return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # a whole number of any length, or half of a pair of surrogates
        return json.dumps(plain, sort_keys=True, ensure_ascii=False, default=str)


def tools_key(tools: Sequence[Tool]) -> str:
    """Text that is the same for the same offer of tools, in whatever order."""
    entries = [
        (tool.name, _same_text(tool.description), same_json(tool.parameters)) for tool in tools
    ]
    return same_json(sorted(entries))


def _joined(messages: Iterable[Message]) -> list[Message]:
    kept: list[list[Message]] = []
    """Messages with content; neighbours of the assistant stand together."""
    for message in messages:
        if message.role != "tool" and not message.tool_calls and not message.content.strip():
            continue
        if message.role == "assistant" and kept and kept[-1][0].role == "assistant":
            kept[-1].append(message)
        else:
            kept.append([message])
    return [one[0] if len(one) == 1 else _as_one(one) for one in kept]


def _as_one(messages: Sequence[Message]) -> Message:
    """Messages of the assistant that follow each other, as one."""
    texts = [message.content for message in messages if message.content.strip()]
    calls = tuple(call for message in messages for call in message.tool_calls)
    return replace(messages[0], content="\n".join(texts), tool_calls=calls)


def _in_order_of_calls(heard: Sequence[HeardMessage]) -> list[HeardMessage]:
    out = list(heard)
    runs: list[list[int]] = [[]]
    """Positions of the results behind each message of the assistant."""
    for at, item in enumerate(heard):
        if item.answers is not None:
            runs[-1].append(at)
        elif item.message.role == "assistant":
            runs.append([])
    for run in runs:
        ordered = sorted((heard[at] for at in run), key=lambda item: item.answers or 0)
        for at, item in zip(run, ordered, strict=True):
            out[at] = item
    return out


def _key(message: Message, answers: int | None) -> Key:
    if message.role == "assistant":
        return answer_key(split_thought(message.content)[1], message.tool_calls)
    if message.role == "tool":
        which = message.tool_call_id if answers is None else answers
        return "tool", which, _same_text(message.content), *_digests(message)
    return message.role, _same_text(message.content), *_digests(message)


def _digests(message: Message) -> tuple[str, ...]:
    return tuple(image.digest for image in message.images)


def _same_text(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
