"""The parser that a chat template asks for: whatever reads back a call that the template writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

from agentrl.chat.calls.marked_json import FencedJsonParser
from agentrl.chat.format import ChatFormat
from agentrl.chat.offered import OfferedTool
from agentrl.chat.parser import ToolCallParser
from agentrl.chat.template import PROBE_CALL_ID, PROBE_TOOL, GuardedTemplate
from agentrl.types import CallStatus

_USER = "Alphaprobe"
_ARGUMENTS = {"place": "Betaprobe", "count": 7, "parts": {"deep": [1, True, "x"]}}
_TOOL = OfferedTool(
    {
        "name": PROBE_TOOL,
        "description": "Probe.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string"},
                "count": {"type": "integer"},
                "parts": {"type": "object"},
            },
        },
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenParser:
    """The parser for a template, and why it is the one."""

    parser: ToolCallParser
    reason: str
    """For people."""
    own: bool
    """Whether it is what the template writes; else the model is told in the prompt."""


def choose_parser(template: GuardedTemplate, parsers: Iterable[ToolCallParser]) -> ChosenParser:
    """Render a call and take the parser that reads it back, with least text left beside it.

    Args:
        template: of the model.
        parsers: those that may be taken, the first one first.
    """
    known = [parser for parser in parsers if parser.names_tools]
    for text in _renders(template):
        start = text.index(_USER) + len(_USER)
        left = {parser: _left_beside(parser, text, start) for parser in known}
        right = {parser: rest for parser, rest in left.items() if rest is not None}
        if right:
            parser = min(right, key=lambda one: right[one])
            return ChosenParser(parser=parser, reason="as the chat template writes calls", own=True)
    shows = template.abilities.tools or template.abilities.calls
    reason = (
        "described in the prompt, since no parser reads the calls of the chat template"
        if shows
        else "described in the prompt, since the chat template shows no tools"
    )
    return ChosenParser(parser=FencedJsonParser(), reason=reason, own=False)


def _renders(template: GuardedTemplate) -> Iterator[str]:
    """Conversations with a call in them, in all ways in which templates take one."""
    answer = {"role": "tool", "content": "9", "tool_call_id": PROBE_CALL_ID, "name": PROBE_TOOL}
    arguments: tuple[Any, ...] = (_ARGUMENTS, json.dumps(_ARGUMENTS))
    for given in arguments:
        function = {"name": PROBE_TOOL, "arguments": given}
        call = {"type": "function", "id": PROBE_CALL_ID, "function": function}
        for content in ("", None):
            said = {"role": "assistant", "content": content, "tool_calls": [call]}
            for after in ([], [answer]):
                messages = [{"role": "user", "content": _USER}, said, *after]
                text = template.attempt(messages, generate=False, needles=[_USER])
                if text is not None and PROBE_TOOL in text:
                    yield text


def _left_beside(parser: ToolCallParser, text: str, start: int) -> int | None:
    """Characters beside the one call that a parser reads right; None if it does not."""
    found = list(parser.find(text, start, [_TOOL]))
    if len(found) != 1 or found[0].status is not CallStatus.OK or found[0].name != PROBE_TOOL:
        return None
    if dict(found[0].arguments) != _ARGUMENTS:
        return None
    return len(text) - (found[0].end - found[0].start)


class AutoParser(FencedJsonParser):
    """The parser of a run until its chat format is known, which is what `for_chat` asks for."""

    name = "auto"
    only_offered = True

    def for_chat(self, chat: ChatFormat) -> ToolCallParser:
        """The parser of the chosen format; see `ToolCallParser.for_chat`."""
        if not isinstance(chat.syntax, ToolCallParser):
            return self
        chosen = copy(chat.syntax)
        chosen.only_offered = True
        return chosen
