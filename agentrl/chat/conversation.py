"""Conversations of a dataset as the ids and masks that a rollout would have had.

    prompt_ids   render_prompt(prompt, tools)
    ids, mask    an assistant's message: its words and calls, and the stop token     1 1 1 1
                 results and messages of the user: `turn_delta`                      0 0 0
                 the assistant's next message                                        1 1 1

Nothing is rendered as a whole: a template that rewrites earlier turns would give ids that no model
ever sees when it is used. Each turn is what the model would have sampled, so the run's parser reads
the same calls out of it, or the conversation is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.chat.format import ChatFormat
from agentrl.chat.parser import ToolCallParser
from agentrl.chat.template import short_call_ids
from agentrl.errors import ChatError
from agentrl.tool import Tool
from agentrl.types import CallStatus, Message, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedCompletion:
    """A prompt and what follows it, as a rollout records them."""

    prompt_ids: tuple[int, ...]
    """[_P] The prompt, generation prompt and `chat.reply_prefix` included."""
    ids: tuple[int, ...]
    """[_T] From the assistant's first token to its last stop token."""
    mask: tuple[int, ...]
    """[_T] 1 = the assistant's text or stop token, 0 = everything between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenTurn:
    """One message of the assistant as a model samples it."""

    ids: tuple[int, ...]
    """Ids of its words, its calls and the token that ends it."""
    ended: bool
    """Whether it ends with a stop token, and not with one of `chat.stop`; that is the last id."""
    calls: tuple[ToolCall, ...]
    """As the parser reads them."""


def encode_completion(
    chat: ChatFormat,
    prompt: Sequence[Message],
    completion: Sequence[Message],
    tools: Sequence[Tool] = (),
) -> EncodedCompletion:
    """Ids and mask of a conversation. Messages behind the assistant's last one are left out.

    Calls are written as the model's template does where the parser of the run reads that, and as
    the parser's own syntax otherwise. Results are put in the order of their calls and carry the
    ids that the parser gives. White space at the edges of what an assistant says is kept or not as
    the template keeps it, and reasoning stays where it is.

    Args:
        chat: the format of the run.
        prompt: messages before the completion.
        completion: from the assistant's first message on; text, calls, results and more turns.
        tools: what was offered; `offered.schema_tool` makes them of schemas.

    Raises:
        ChatError: the template refuses a message, a call cannot be written so that the parser
            reads it, a turn does not begin with `chat.reply_prefix`, or goes on behind a stop.
    """
    if not completion or completion[0].role != "assistant":
        got = f"role {completion[0].role!r}" if completion else "no message"
        raise ChatError(
            f"a completion begins with {got}; expected the assistant's message, with everything "
            "before it in the prompt"
        )
    prompt_ids = _prompt_ids(chat, prompt, tools)
    ids: list[int] = []
    mask: list[int] = []
    turn: SpokenTurn | None = None
    said = completion[0]
    turns = list(_turns(completion))
    for number, (between, message) in enumerate(turns):
        if turn is not None:
            answers = _answers(between, said, turn.calls)
            stop_id = turn.ids[-1] if turn.ended else None
            delta = chat.turn_delta(answers, ended=turn.ended, stop_id=stop_id)
            ids += delta
            mask += [0] * len(delta)
        said = message
        following = turns[number + 1][0] if number + 1 < len(turns) else ()
        turn = spoken_turn(chat, said, tools, number, stop_id=chat.stop_before(following))
        ids += turn.ids
        mask += [1] * len(turn.ids)
    return EncodedCompletion(prompt_ids=tuple(prompt_ids), ids=tuple(ids), mask=tuple(mask))


def _turns(completion: Sequence[Message]) -> Iterator[tuple[list[Message], Message]]:
    """Each message of the assistant, after those that stand before it."""
    between: list[Message] = []
    for message in completion:
        if message.role == "assistant":
            yield between, message
            between = []
        else:
            between.append(message)


def _prompt_ids(
    chat: ChatFormat, prompt: Sequence[Message], tools: Sequence[Tool]
) -> tuple[int, ...]:
    try:
        return chat.render_prompt(prompt, tools)
    except ChatError:
        short = short_call_ids(prompt)
        if short == list(prompt):
            raise
        return chat.render_prompt(short, tools)


def spoken_turn(
    chat: ChatFormat, said: Message, tools: Sequence[Tool], number: int, *, stop_id: int
) -> SpokenTurn:
    """A message of the assistant as a model samples it, in the first way that is read as meant.

    Args:
        chat: the format of the run.
        said: the message.
        tools: what was offered.
        number: index of the turn in its conversation; makes the ids of its calls.
        stop_id: see `ChatFormat.stop_before`.

    Raises:
        ChatError: no way to write it is read as what it says.
    """
    error: ChatError | None = None
    for text in chat.assistant_texts(said):
        try:
            ids, ended = _until_stop(
                chat, _behind_prefix(chat, text, number), number, stop_id=stop_id
            )
        except ChatError as why:
            error = error or why
            continue
        calls = _read_calls(chat, ids, tools, number)
        tail = calls[max(0, len(calls) - len(said.tool_calls)) :]
        if not said.tool_calls or (
            len(tail) == len(said.tool_calls)
            and all(_same_call(chat, *both) for both in zip(said.tool_calls, tail, strict=True))
        ):
            return SpokenTurn(ids=ids, ended=ended, calls=calls)
    if error is not None:
        raise error
    names = ", ".join(call.name for call in said.tool_calls)
    raise ChatError(
        f"assistant turn {number}: its calls ({ascii(names)[:80]}) cannot be written so that the "
        f"parser {chat.syntax.name!r} reads them; choose another chat.tool_parser, or leave the "
        "conversation out"
    )


def _behind_prefix(chat: ChatFormat, text: str, number: int) -> str:
    prefix = chat.reply_prefix
    if not text.startswith(prefix):
        raise ChatError(
            f"assistant turn {number} begins with {ascii(text)[:60]}, but every turn begins with "
            f"chat.reply_prefix {ascii(prefix)[:60]}; leave the conversation out, or the prefix"
        )
    return text.removeprefix(prefix)


def _until_stop(
    chat: ChatFormat, text: str, number: int, *, stop_id: int
) -> tuple[tuple[int, ...], bool]:
    """Ids of a turn and its stop, and whether that ends the turn for the template."""
    ids = chat.encode_said(text)
    stops = {*chat.stop_token_ids, *chat.action_stop_ids}
    at = next((index for index, token in enumerate(ids) if token in stops), None)
    if at is None:
        for stop in chat.action_stop_ids:
            written = chat.decode_raw([stop])
            if text.rstrip().endswith(written):
                body = text.rstrip().removesuffix(written)
                return (*chat.encode_said(body), stop), False
        return (*ids, stop_id), True
    if rest := chat.decode_raw(ids[at + 1 :]).strip():
        raise ChatError(
            f"assistant turn {number} goes on with {ascii(rest)[:60]} behind "
            f"{chat.decode_raw(ids[at : at + 1])!r}, where sampling stops; end the turn there, or "
            "change chat.stop"
        )
    return ids[: at + 1], ids[at] in chat.stop_token_ids


def _read_calls(
    chat: ChatFormat, ids: Sequence[int], tools: Sequence[Tool], number: int
) -> tuple[ToolCall, ...]:
    syntax = chat.syntax
    if not isinstance(syntax, ToolCallParser):
        return ()
    given = chat.reply_prefix_ids
    return syntax.parse(ids, chat, given=given, tools=tools, turn=number).calls


def _same_call(chat: ChatFormat, meant: ToolCall, read: ToolCall) -> bool:
    if meant.status is not CallStatus.OK:
        return meant.raw.strip() == read.raw.strip()
    if read.status is not CallStatus.OK or meant.name != read.name:
        return False
    if chat.syntax.write(meant) == chat.syntax.write(read):
        return True
    same_names = meant.arguments.keys() == read.arguments.keys()
    return same_names and all(
        _same_value(value, read.arguments[key]) for key, value in meant.arguments.items()
    )


def _same_value(meant: Any, read: Any) -> bool:
    """Equal, or the same as text: without a schema some formats have texts only."""
    if meant == read or not isinstance(read, str):
        return bool(meant == read)
    spoken = json.dumps(meant, ensure_ascii=False).lower()
    return read.strip().lower() == spoken or (meant is None and read.strip().lower() == "none")


def _answers(
    messages: Sequence[Message], said: Message, calls: Sequence[ToolCall]
) -> list[Message]:
    """Results in the order of their calls, with the ids and names that the parser gave these."""
    if not calls:
        return list(messages)
    first = len(calls) - len(said.tool_calls) if said.tool_calls else 0
    known = {call.id: first + index for index, call in enumerate(said.tool_calls)}
    places = [at for at, message in enumerate(messages) if message.role == "tool"]
    results: list[tuple[int, Message]] = []
    for order, at in enumerate(places):
        message = messages[at]
        number = known.get(message.tool_call_id or "", first + order)
        if number < len(calls):
            call = calls[number]
            message = replace(message, tool_call_id=call.id, name=call.name or message.name)
        results.append((number, message))
    out = list(messages)
    for at, (_, message) in zip(places, sorted(results, key=lambda it: it[0]), strict=True):
        out[at] = message
    return out
