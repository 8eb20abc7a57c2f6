"""Calls whose arguments are one JSON object between marks: DeepSeek, Kimi, gpt-oss, and any model.

The name stands in the opening mark, or with `fenced_json` in the object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from agentrl.chat.calls.json_calls import JsonText, JsonValue, read_call, read_json, skip_space
from agentrl.chat.parser import Found, ToolCallParser
from agentrl.tool import Tool
from agentrl.types import CallStatus, ToolCall


class MarkedJsonParser(ToolCallParser):
    """Reads an opening mark, a JSON object and a closing mark.

    The marks around a section of several calls belong to the first and the last of them.
    """

    starts: ClassVar[re.Pattern[str]]
    """Begins a call for sure; what follows may be broken."""
    opening: ClassVar[re.Pattern[str]]
    """The opening up to the object, from the same place; `name` is the tool."""
    section: ClassVar[tuple[str, str]] = ("", "")
    """Marks around all calls of a turn."""
    closing_name: ClassVar[str]
    """The closing mark, for messages."""
    closes: ClassVar[re.Pattern[str]]
    """The closing mark."""

    def closing(self, opening: re.Match[str]) -> re.Pattern[str]:
        """Pattern of the end of a call that was opened so, without the space before it."""
        return self.closes

    def found_call(self, opening: re.Match[str], read: JsonValue, end: int) -> Found:
        """The call of an object that was read."""
        value = {"name": opening["name"].strip(), "arguments": read.value}
        return read_call(value, opening.start(), end)

    def find(self, text: str, start: int, tools: Sequence[Tool]) -> Iterator[Found]:
        """Find the calls of a turn; see `ToolCallParser.find`."""
        text = JsonText(text)
        match = self.starts.search(text, start)
        while match:
            found = self._read(text, match.start())
            yield replace(found, start=self._before(text, found.start, start))
            start = found.end
            match = self.starts.search(text, start)

    def _read(self, text: str, at: int) -> Found:
        opening = self.opening.match(text, at)
        if opening is None:
            error = f"expected the name of a tool and a JSON object before {self.closing_name}"
            return self._broken(text, at, at + 1, CallStatus.MALFORMED, error)
        read = read_json(text, opening.end())
        if read.error:
            status = CallStatus.UNCLOSED if read.cut_off else CallStatus.MALFORMED
            return self._broken(text, at, max(read.end, at + 1), status, read.error)
        behind = skip_space(text, read.end)
        close = self.closing(opening).match(text, behind)
        if close:
            return self.found_call(opening, read, self._behind(text, close.end()))
        missing = f"{self.closing_name} is missing"
        if behind < len(text):
            error = f"there is text between the JSON object and {self.closing_name}"
            return self._broken(text, at, behind, CallStatus.MALFORMED, error)
        found = self.found_call(opening, read, len(text))
        if found.status is not CallStatus.OK:
            return found
        return replace(found, status=CallStatus.UNCLOSED, error=missing)

    def _broken(self, text: str, at: int, behind: int, status: CallStatus, error: str) -> Found:
        following = self.starts.search(text, behind)
        end = following.start() if following else len(text)
        return Found(start=at, end=end, status=status, error=error)

    def _before(self, text: str, at: int, least: int) -> int:
        """Where a call begins, with the mark of its section."""
        mark, before = self.section[0], at
        while before > least and text[before - 1].isspace():
            before -= 1
        begin = before - len(mark)
        return begin if mark and begin >= least and text.startswith(mark, begin) else at

    def _behind(self, text: str, end: int) -> int:
        """Where a call ends, with the mark of its section."""
        mark, behind = self.section[1], skip_space(text, end)
        return behind + len(mark) if mark and text.startswith(mark, behind) else end


class DeepSeekParser(MarkedJsonParser):
    """Reads the calls of DeepSeek V3, R1 and their distilled models, and those of V3.1.

    `function`, a separator, the name and a fenced object; since V3.1 name, separator and object.
    """

    name = "deepseek"
    between_calls = ""
    _begin, _end = (
        "<\uff5ctool\u2581call\u2581begin\uff5c>",
        "<\uff5ctool\u2581call\u2581end\uff5c>",
    )
    _sep = "<\uff5ctool\u2581sep\uff5c>"
    section = (
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",
        "<\uff5ctool\u2581calls\u2581end\uff5c>",
    )
    how_to_call = (
        f"To call a tool, write:\n{section[0]}{_begin}TOOL{_sep}"
        f'{{"ARGUMENT": VALUE}}{_end}{section[1]}'
    )
    starts = re.compile(re.escape(_begin))
    opening = re.compile(
        rf"{re.escape(_begin)}(?:function{re.escape(_sep)}(?=[^\n{{<]++\n))?+"
        rf"(?P<name>[^\n{{<]*+)(?:{re.escape(_sep)})?+\s*+(?P<fence>```(?:json)?+\s*+)?+(?=\{{)"
    )
    closing_name = _end
    closes = re.compile(re.escape(_end))
    _fenced = re.compile(rf"```\s*+{re.escape(_end)}")

    def closing(self, opening: re.Match[str]) -> re.Pattern[str]:
        """Pattern of the end of a call; see `MarkedJsonParser.closing`."""
        return self._fenced if opening["fence"] else self.closes

    def write(self, call: ToolCall) -> str:
        """Write the text of a call; see `CallSyntax.write`."""
        inner = f"{call.name}{self._sep}{_json(call)}"
        return f"{self.section[0]}{self._begin}{inner}{self._end}{self.section[1]}"


class KimiParser(MarkedJsonParser):
    """Reads the calls of Kimi K2: `functions.NAME:INDEX` between marks, and an object."""

    name = "kimi_k2"
    between_calls = ""
    section = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    how_to_call = (
        "To call a tool, write:\n<|tool_calls_section_begin|><|tool_call_begin|>functions.TOOL:0"
        '<|tool_call_argument_begin|>{"ARGUMENT": VALUE}<|tool_call_end|>'
        "<|tool_calls_section_end|>"
    )
    starts = re.compile(r"<\|tool_call_begin\|>")
    opening = re.compile(
        r"<\|tool_call_begin\|>\s*+(?:functions\.)?+(?P<name>[^<\n{]*?)(?::\d{1,9})?[ \t\n]?"
        r"<\|tool_call_argument_begin\|>\s*+"
    )
    closing_name = "<|tool_call_end|>"
    closes = re.compile(r"<\|tool_call_end\|>")

    def write(self, call: ToolCall) -> str:
        """Write the text of a call; see `CallSyntax.write`."""
        return (
            f"{self.section[0]}<|tool_call_begin|>functions.{call.name}:0"
            f"<|tool_call_argument_begin|>{_json(call)}<|tool_call_end|>{self.section[1]}"
        )


class HarmonyParser(MarkedJsonParser):
    """Reads the calls of gpt-oss: messages to `functions.NAME`.

    The recipient stands before or behind the channel.
    """

    name = "harmony"
    between_calls = "<|start|>assistant"
    how_to_call = (
        "To call a tool, write:\n<|channel|>commentary to=functions.TOOL <|constrain|>json"
        '<|message|>{"ARGUMENT": VALUE}<|call|>'
    )
    starts = re.compile(
        r"(?:<\|start\|>assistant)?+<\|channel\|>(?:commentary|analysis) ?to=functions\."
        r"|(?:<\|start\|>assistant|\A) ?to=functions\."
    )
    opening = re.compile(
        rf"(?:{starts.pattern})(?P<name>[\w.:-]*+)\s*+(?:<\|channel\|>(?:commentary|analysis)\s*+)?+"
        r"(?:<\|constrain\|>\s*+)?+(?:json|code)?+\s*+<\|message\|>\s*+"
    )
    closing_name = "<|call|>"
    closes = re.compile(r"<\|call\|>|<\|end\|>|\Z")
    """A turn ends with the mark, which is not part of what is read."""

    def write(self, call: ToolCall) -> str:
        """Write the text of a call; see `CallSyntax.write`."""
        return (
            f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>"
            f"{_json(call)}<|call|>"
        )


class FencedJsonParser(MarkedJsonParser):
    """Reads fenced blocks marked `tool` that hold the name and the arguments of a call.

    For models whose template writes no calls: any model that writes code can write these.
    """

    name = "fenced_json"
    how_to_call = (
        "To call a tool, write a fenced block with its name and arguments:\n"
        '```tool\n{"name": "TOOL", "arguments": {"ARGUMENT": VALUE}}\n```'
    )
    starts = re.compile(
        r"^[ \t]*+(?:`{3,}+|~{3,}+)[ \t]*+tool(?:_call)?+s?+[ \t\r]*+$", re.MULTILINE
    )
    opening = re.compile(
        r"[ \t]*+(?P<fence>`{3,}+|~{3,}+)[ \t]*+tool(?:_call)?+s?+\s*+(?P<name>)(?=\{)"
    )
    closing_name = "the closing fence"

    def closing(self, opening: re.Match[str]) -> re.Pattern[str]:
        """Pattern of the end of a call; see `MarkedJsonParser.closing`."""
        fence = opening["fence"]
        return re.compile(rf"{re.escape(fence[0])}{{{len(fence)},}}+[ \t]*+(?:\n|\Z)")

    def found_call(self, opening: re.Match[str], read: JsonValue, end: int) -> Found:
        """The call of an object; see `MarkedJsonParser.found_call`."""
        return read_call(read.value, opening.start(), end, ("arguments", "parameters"))

    def write(self, call: ToolCall) -> str:
        """Write the text of a call; see `CallSyntax.write`."""
        value = {"name": call.name, "arguments": dict(call.arguments)}
        return f"```tool\n{json.dumps(value, ensure_ascii=False)}\n```"


def _json(call: ToolCall) -> str:
    return json.dumps(dict(call.arguments), ensure_ascii=False)
