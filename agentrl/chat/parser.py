"""Finding tool calls in what the model wrote.

Model text is data: no parser raises on it, and none repairs it. What looks like a call but is not
one comes back with a status, the verbatim text and its exact token span, so that the loop can
answer it and a loss can address it.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any

from agentrl.chat.call_syntax import CallSyntax
from agentrl.chat.format import ChatFormat
from agentrl.tool import Tool
from agentrl.types import CallStatus, ToolCall
from agentrl.types.thoughts import end_of_thought, parts_of_thought, split_behind

MAX_CALLS = 128
"""Calls that are read in one turn. What follows is one malformed call, so that neither reading a
turn nor answering its calls can take longer than its length allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """One assistant turn, read."""

    text: str
    """The turn without special tokens but the marks of its thought."""
    thought: str = ""
    """What was thought at its beginning, without the marks."""
    said: str
    """What stands behind the thought, calls included."""
    content: str
    """Words outside the calls and behind the thought, without outer white space."""
    calls: tuple[ToolCall, ...]
    """Calls in order, malformed ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A call as characters of the decoded turn; what a parser's `find` yields."""

    start: int
    """First character."""
    end: int
    """One past the last character."""
    name: str = ""
    """The tool."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments."""
    status: CallStatus = CallStatus.OK
    """Status of the parse."""
    error: str = ""
    """Reason of a status that is not OK."""
    call_id: str | None = None
    """The id the model itself gave, where the format has one."""


class ToolCallParser(CallSyntax):
    """Reads and writes the calls of one format. Stateless; one instance serves a run.

    A new one is a subclass with `name`, `how_to_call`, `write` and `find`, and a line in `parsers`;
    a user's is named by an import string.
    """

    only_offered: bool = False
    """Whether text that looks like a call is text where no tool is offered."""

    def parse(
        self,
        ids: Sequence[int],
        chat: ChatFormat,
        *,
        given: Sequence[int] = (),
        tools: Sequence[Tool] = (),
        turn: int = 0,
        begun: str | None = None,
    ) -> ParsedTurn:
        """Read one turn. Never raises on model text.

        Args:
            ids: the sampled ids, with or without the stop token.
            chat: decodes them.
            given: ids the turn was begun with by the environment (`chat.reply_prefix`); they are
                read as part of it, and spans count from the first sampled id.
            tools: what is offered; formats whose arguments are untyped text take the types from
                the schemas.
            turn: index of the turn in its rollout; makes the ids of the calls differ between
                turns with the same text.
            begun: mark with which the prompt has opened a thought, empty for none; None for
                prompts of the template.
        """
        body = [*given, *ids]
        while body and body[-1] in chat.stop_token_ids:
            body.pop()
        if self.only_offered and not tools:
            return read_text(body, chat, begun=begun)
        raw = chat.decode_raw(body)
        begun = chat.thought_opening if begun is None else begun
        behind = end_of_thought(raw, begun=begun, quotes=self.quotes(raw, tools))
        found = self._bounded(raw, behind, tools)
        text, thought, said = _plain(raw, behind, body, chat)
        if not found:
            return ParsedTurn(text=text, thought=thought, said=said, content=said.strip(), calls=())
        token_map = chat.token_map(body, raw)
        fresh = _call_ids(body, turn, len(found))
        calls: list[ToolCall] = []
        outside: list[str] = []
        given_ids: set[str] = set()
        done = behind
        for index, item in enumerate(found):
            outside.append(raw[done : item.start])
            done = item.end
            own = item.call_id if item.call_id not in given_ids else None
            given_ids.add(own or fresh[index])
            calls.append(
                ToolCall(
                    id=own or fresh[index],
                    name=item.name,
                    arguments=item.arguments,
                    raw=raw[item.start : item.end],
                    status=item.status,
                    error=item.error,
                    span=_shifted(token_map.span(item.start, item.end), len(given)),
                )
            )
        outside.append(raw[done:])
        content = chat.drop_specials("".join(outside)).strip()
        return ParsedTurn(
            text=text, thought=thought, said=said, content=content, calls=tuple(calls)
        )

    def for_chat(self, chat: ChatFormat) -> ToolCallParser:
        """The parser for a format; itself, unless the format decides."""
        return self

    def quotes(self, text: str, tools: Sequence[Tool] = ()) -> Iterator[tuple[int, int]]:
        """Spans of whole calls in a turn; a closing mark in one of them is text of an argument."""
        for item in islice(self.find(text, 0, tools), MAX_CALLS):
            if item.status is CallStatus.OK:
                yield item.start, item.end

    def _bounded(self, text: str, start: int, tools: Sequence[Tool]) -> list[Found]:
        """The calls of a turn; beyond `MAX_CALLS`, all that follows is one malformed call."""
        found = list(islice(self.find(text, start, tools), MAX_CALLS + 1))
        if len(found) > MAX_CALLS:
            found[-1] = Found(
                start=found[-1].start,
                end=len(text),
                status=CallStatus.MALFORMED,
                error=f"more than {MAX_CALLS} calls in one turn; what follows was not read",
            )
        return found

    @abstractmethod
    def find(self, text: str, start: int, tools: Sequence[Tool]) -> Iterable[Found]:
        """Calls in `text[start:]`, in order and without overlap.

        Args:
            text: the turn with special tokens written out.
            start: where reasoning ends; calls before it are only thought of.
            tools: see `parse`.

        Between two calls it may take time in proportion to the length of the text, and no more: a
        model can write any character a million times. Possessive quantifiers (`*+`) keep patterns
        from trying the same characters again.
        """


def read_text(
    ids: Sequence[int], chat: ChatFormat, *, given: Sequence[int] = (), begun: str | None = None
) -> ParsedTurn:
    """Read one turn in which no call is looked for; arguments as `ToolCallParser.parse`."""
    body = [*given, *ids]
    raw = chat.decode_raw(body)
    begun = chat.thought_opening if begun is None else begun
    end = end_of_thought(raw, begun=begun)
    text, thought, said = _plain(raw, end, body, chat)
    return ParsedTurn(text=text, thought=thought, said=said, content=said.strip(), calls=())


def _plain(raw: str, end: int, body: Sequence[int], chat: ChatFormat) -> tuple[str, str, str]:
    """The turn, its thought and its words without special tokens; marks of a thought stay in it."""
    if not chat.has_specials(body):
        thought, said = split_behind(raw, end)
        return raw, thought, said if end else raw
    if not end:
        text = chat.decode(body)
        return text, "", text
    thought, said = map(chat.drop_specials, split_behind(raw, end))
    opening, inside, close = parts_of_thought(raw[:end])
    inner, behind = chat.drop_specials(inside), chat.drop_specials(raw[end:])
    return f"{opening}{inner}{close}{behind}", thought, said


def _shifted(span: tuple[int, int], by: int) -> tuple[int, int]:
    return max(0, span[0] - by), max(0, span[1] - by)


def _call_ids(ids: Sequence[int], turn: int, count: int) -> list[str]:
    """Nine hexadecimal digits each, a form that every template accepts; the same for the same
    arguments."""
    parts = [blake2b(array("q", (turn, *ids))).hexdigest()]
    while len(parts[0]) * len(parts) < 9 * count:
        parts.append(blake2b(parts[-1].encode()).hexdigest())
    digits = "".join(parts)
    return [digits[9 * index : 9 * index + 9] for index in range(count)]
