"""A sampled turn as an agent is given it: words, thought and calls.

Text that ends a turn early (a stop text, the end of the one call that may be made) shortens the
sampled ids as well: the beginning of a sample is what would have been sampled with that end, with
the same log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agentrl.chat import ChatFormat, ToolCallParser
from agentrl.chat.parser import read_text
from agentrl.gateway.records import TurnRequest
from agentrl.rollout.history.meaning import thought_and_words
from agentrl.types import CallStatus, FinishReason, Generation, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTurn:
    """One sampled turn, read."""

    generation: Generation
    """What was kept of it."""
    text: str
    """All of it without special tokens, for the record."""
    found: tuple[ToolCall, ...]
    """Every call in it, malformed ones included."""
    calls: tuple[ToolCall, ...]
    """Calls that the agent is given."""
    words: str
    """Text outside these calls and the thought."""
    reasoning: str
    """The thought."""
    stop_id: int | None
    """Stop token with which it ends; None without one."""
    stop_text: str | None
    """Text that ended it."""
    truncated: bool
    """Whether it was cut off at its token limit."""

    @property
    def finish(self) -> Literal["stop", "length", "calls"]:
        """Why it ended, as every wire writes it."""
        return "length" if self.truncated else "calls" if self.calls else "stop"


def read_turn(
    generation: Generation,
    chat: ChatFormat,
    parser: ToolCallParser | None,
    request: TurnRequest,
    *,
    turn: int,
    end_ids: frozenset[int],
    stop_ids: Sequence[int],
) -> ReadTurn:
    """Read one turn as the agent is given it.

    Args:
        generation: as the engine gave it.
        chat: decodes it.
        parser: finds calls; None if there are none to find.
        request: says what is offered and where the turn ends.
        turn: index of the turn in its rollout.
        end_ids: tokens that end a turn and are no text of it.
        stop_ids: all tokens at which sampling stopped.
    """
    generation, stop_text = _until_stop(generation, chat, request.stop)
    given = chat.reply_prefix_ids
    found: tuple[ToolCall, ...] = ()
    if parser is not None:
        body = _body(generation.ids, end_ids)
        parsed = parser.parse(body, chat, given=given, tools=request.tools, turn=turn)
        found = parsed.calls
    calls = _served(found, parser, request)
    if len(calls) > 1 and not request.parallel:
        end = calls[0].span[1]
        generation = _shortened(generation, end)
        found = tuple(call for call in found if call.span[1] <= end)
        calls = calls[:1]
    ids = generation.ids
    body = _body(ids, end_ids)
    reasoning, words = thought_and_words(chat, parser, (*given, *body), calls)
    if stop_text and stop_text in words:
        words = words[: words.rindex(stop_text)].rstrip()
    elif stop_text and stop_text in reasoning:
        reasoning = reasoning[: reasoning.rindex(stop_text)].rstrip()
    return ReadTurn(
        generation=generation,
        text=read_text(body, chat).text,
        found=found,
        calls=calls,
        words=words,
        reasoning=reasoning,
        stop_id=ids[-1] if len(body) < len(ids) else None,
        stop_text=stop_text,
        truncated=generation.finish_reason is FinishReason.LENGTH and ids[-1] not in stop_ids,
    )


def _served(
    found: Sequence[ToolCall], parser: ToolCallParser | None, request: TurnRequest
) -> tuple[ToolCall, ...]:
    """Calls an agent can answer; what is malformed stays text."""
    if parser is None or not request.calls or not request.tools:
        return ()
    names = {tool.name for tool in request.tools}
    return tuple(
        call
        for call in found
        if call.status is CallStatus.OK and (parser.names_tools or call.name in names)
    )


def _body(ids: Sequence[int], end_ids: frozenset[int]) -> Sequence[int]:
    return ids[:-1] if ids and ids[-1] in end_ids else ids


def _until_stop(
    generation: Generation, chat: ChatFormat, stop: Sequence[str]
) -> tuple[Generation, str | None]:
    """The turn up to the token with which the first stop text is complete."""
    if not stop:
        return generation, None
    text = chat.decode_raw(generation.ids)
    ends = [(at + len(word), word) for word in stop if word and (at := text.find(word)) >= 0]
    if not ends:
        return generation, None
    end, word = min(ends)
    _, tokens = chat.token_map(generation.ids, text).span(end - len(word), end)
    return _shortened(generation, tokens), word


def _shortened(generation: Generation, tokens: int) -> Generation:
    if tokens >= len(generation.ids):
        return generation
    return replace(
        generation,
        ids=generation.ids[:tokens],
        log_probs=generation.log_probs[:tokens],
        policy_versions=generation.policy_versions[:tokens],
        finish_reason=FinishReason.STOP,
    )
