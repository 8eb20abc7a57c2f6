"""Requests for a turn and their answers in both wire formats, as pure functions.

A call is text for us (`<tool_call>` tags) and a field for the API. Arguments that are no JSON stay
in the text: the parser of the run then says what is wrong with them, as for a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.chat.calls.json_calls import HermesParser
from agentrl.chat.parser import Found
from agentrl.runtime.sampling.api.transcript import Transcript, Utterance
from agentrl.served import ServedSettings
from agentrl.served.formats import (
    Api,
    WireCall,
    add_blocks,
    anthropic_call,
    anthropic_result,
    anthropic_tool,
    openai_call,
    read_wire_turn,
)
from agentrl.served.wire import with_extra
from agentrl.types import CallStatus, SamplingParams
from agentrl.types.thoughts import end_of_thought, written_thought

_NOT_RUN = "(not run)"
_EMPTY = "(no answer)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenAnswer:
    """One turn of an API, as the text that a checkpoint would have sampled."""

    text: str
    """Thought, words and calls."""
    cut_off: bool
    """Whether it was ended by the limit of tokens."""


def turn_body(
    settings: ServedSettings, transcript: Transcript, sampling: SamplingParams
) -> dict[str, Any]:
    """Body of a request for the next turn."""
    make = _messages_body if settings.api == "anthropic" else _chat_body
    body = make(settings, transcript, sampling)
    return with_extra(settings, body)


def read_turn(settings: ServedSettings, answer: Any) -> SpokenAnswer:
    """The turn in a response.

    Raises:
        ValueError: it is not a response of this wire format.
    """
    turn = read_wire_turn(settings.api, answer)
    calls = [_written_call(settings.api, call) for call in turn.calls]
    return SpokenAnswer(text=_joined(turn.thought, turn.text, calls), cut_off=turn.truncated)


def _written_call(api: Api, found: WireCall) -> str:
    if not isinstance(found.name, str):
        raise ValueError("a call has no name")
    given = found.arguments
    if api == "openai":
        given = given or ""
    arguments = given if api == "openai" and isinstance(given, str) else json.dumps(given)
    call = f'{{"name": {json.dumps(found.name)}, "arguments": {arguments.strip() or "{}"}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


def _joined(thought: str, words: str, calls: Sequence[str]) -> str:
    text = written_thought(thought) + "\n".join((*((words,) if words else ()), *calls))
    # JSON may escape half of a surrogate pair, which no tokenizer takes.
    return text.encode(errors="replace").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldCall:
    """A call of a turn that the API is told of again."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """A turn of the assistant with the results of its calls, or a message beside them."""

    role: str
    words: str
    calls: tuple[_HeldCall, ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    """Id of a call and its result, one for each call."""


def _exchanges(transcript: Transcript) -> Iterator[_Exchange]:
    """The conversation with calls and results together, as both wires want them.

    A result without a call that the API can be told of becomes a message of the user.
    """
    waiting = list(transcript.utterances)
    turn = 0
    while waiting:
        item = waiting.pop(0)
        if item.role != "assistant":
            words = _as_user(item) if item.role == "tool" else item.text
            role = "user" if item.role == "tool" else item.role
            yield _Exchange(role=role, words=words)
            continue
        answers: list[Utterance] = []
        while waiting and waiting[0].role == "tool":
            answers.append(waiting.pop(0))
        words, found = _split(item.text)
        calls: list[_HeldCall] = []
        results: list[tuple[str, str]] = []
        beside: list[Utterance] = []
        for at, one in enumerate(found):
            answer = answers[at] if at < len(answers) else None
            if one.status is not CallStatus.OK:
                words += item.text[one.start : one.end]
                beside += [answer] if answer is not None else []
                continue
            call_id = f"call_{turn}_{at}"
            calls.append(_HeldCall(id=call_id, name=one.name, arguments=one.arguments))
            results.append((call_id, answer.text if answer is not None else _NOT_RUN))
        yield _Exchange(
            role="assistant", words=words.strip(), calls=tuple(calls), results=tuple(results)
        )
        for one in (*beside, *answers[len(found) :]):
            yield _Exchange(role="user", words=_as_user(one))
        turn += 1


def _split(text: str) -> tuple[str, list[Found]]:
    """Words of a turn without its thought and its calls, and the calls."""
    parser = HermesParser()
    start = end_of_thought(text, quotes=parser.quotes(text))
    found = list(parser.find(text, start, ()))
    words, done = "", start
    for one in found:
        words += text[done : one.start]
        done = one.end
    return words + text[done:], found


def _as_user(item: Utterance) -> str:
    return f"Result of {item.name or 'the call'}:\n{item.text}"


def _chat_body(
    settings: ServedSettings, transcript: Transcript, sampling: SamplingParams
) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for item in _exchanges(transcript):
        message: dict[str, Any] = {"role": item.role, "content": item.words}
        if item.calls:
            message["tool_calls"] = [
                openai_call(call.id, call.name, json.dumps(call.arguments, ensure_ascii=False))
                for call in item.calls
            ]
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": call_id, "content": text}
            for call_id, text in item.results
        ]
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": messages,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
    }
    if sampling.top_p < 1:
        body["top_p"] = sampling.top_p
    if sampling.seed is not None:
        body["seed"] = sampling.seed % 2**31
    if transcript.tools:
        body["tools"] = [dict(tool) for tool in transcript.tools]
    return body


def _messages_body(
    settings: ServedSettings, transcript: Transcript, sampling: SamplingParams
) -> dict[str, Any]:
    system: list[str] = []
    messages: list[dict[str, Any]] = []

    for item in _exchanges(transcript):
        if item.role == "system":
            system.append(item.words)
            continue
        # An empty block is refused, and a turn must not be left out: roles take turns.
        words = item.words if item.words.strip() or item.calls else _EMPTY
        blocks: list[dict[str, Any]] = [{"type": "text", "text": words}] if words.strip() else []
        blocks += [anthropic_call(call.id, call.name, call.arguments) for call in item.calls]
        add_blocks(messages, item.role, blocks)
        results = [anthropic_result(call_id, text or _EMPTY) for call_id, text in item.results]
        add_blocks(messages, "user", results)
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": messages,
        "temperature": min(sampling.temperature, 1.0),
        "max_tokens": sampling.max_tokens,
    }
    if sampling.top_p < 1:
        body["top_p"] = sampling.top_p
    if system:
        body["system"] = "\n\n".join(system)
    if transcript.tools:
        body["tools"] = [anthropic_tool(tool["function"]) for tool in transcript.tools]
    return body
