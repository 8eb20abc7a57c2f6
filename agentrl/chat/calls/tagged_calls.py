"""Calls written as nested tags: the formats `qwen3_coder`, `glm` and `minimax_m2`."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from agentrl.chat.calls.json_calls import read_json, skip_space
from agentrl.chat.parser import Found, ToolCallParser
from agentrl.tool import Tool
from agentrl.types import CallStatus, ToolCall
from agentrl.types.schemas import ArgumentSchema


class _Broken(Exception):
    """Where and why reading stopped; never leaves this module."""

    def __init__(self, at: int, error: str) -> None:
        super().__init__(error)
        self.at = at


class TaggedCallParser(ToolCallParser):
    """Reads calls whose name and values stand between tags.

    Values are text. With the schemas of the tools they become what the schema says; without, or
    where they do not fit, they stay text.
    """

    opens: ClassVar[str] = "<tool_call>"
    """Tag that may stand before the name."""
    closes: ClassVar[str] = "</tool_call>"
    """Tag that closes it."""
    follows: ClassVar[str] = ""
    """Text with which another call begins between the two tags; empty if each has its own."""
    starts: ClassVar[re.Pattern[str]]
    """Begins a call."""
    tags: ClassVar[tuple[str, ...]]
    """Tags that may come next inside of a call, as far as they are the same in all calls."""
    begun: ClassVar[re.Pattern[str]]
    """A tag with text of its own in which the whole text ends."""
    goes_on: ClassVar[re.Pattern[str]]
    """What stands behind a value and the space after it, and never in one."""
    end_value: ClassVar[str]
    """Tag behind a value."""

    def find(self, text: str, start: int, tools: Sequence[Tool]) -> Iterator[Found]:
        """Find the calls of a turn; see `ToolCallParser.find`."""
        match = self.starts.search(text, start)
        while match:
            found = self._read(text, match.start(), tools)
            yield found
            match = self.starts.search(text, found.end)

    @abstractmethod
    def read_name(self, text: str, at: int) -> tuple[str, int]:
        """Name of the tool at a position, and the position behind it; raises `_Broken`."""

    @abstractmethod
    def read_key(self, text: str, at: int) -> tuple[str, int] | int:
        """Name of the argument at a position, and where its value begins; or the position behind
        the last argument. Raises `_Broken`."""

    def _read(self, text: str, at: int, tools: Sequence[Tool]) -> Found:
        wrapped = text.startswith(self.opens, at)
        inside = at + len(self.opens) if wrapped else at
        name, arguments = "", {}
        try:
            name, inside = self.read_name(text, skip_space(text, inside))
            inside = self._read_arguments(text, inside, arguments)
            end = skip_space(text, inside)
            closed = text.startswith(self.closes, end)
            goes_on = self.follows and text.startswith(self.follows, end)
            if (wrapped or self.follows) and not closed and not goes_on:
                raise _Broken(end, f"{self.closes} is missing")
        except _Broken as broken:
            rest = text[broken.at :]
            cut_off = not rest.strip() or self._is_beginning_of_tag(rest)
            status = CallStatus.UNCLOSED if cut_off else CallStatus.MALFORMED
            end = self._end_of_broken(text, max(broken.at, at + 1))
            # A call that lacks only its closing tag is readable all the same.
            kept = arguments if cut_off else {}
            return Found(
                start=at,
                end=end,
                name=name if cut_off else "",
                arguments=_typed(kept, name, tools),
                status=status,
                error=str(broken),
            )
        end = end + len(self.closes) if closed and (wrapped or self.follows) else inside
        if not name:
            error = "the call names no tool"
            return Found(start=at, end=end, status=CallStatus.MISSING_NAME, error=error)
        return Found(start=at, end=end, name=name, arguments=_typed(arguments, name, tools))

    def _read_arguments(self, text: str, at: int, arguments: dict[str, Any]) -> int:
        """Fill `arguments`; the position behind the last one."""
        while True:
            found = self.read_key(text, skip_space(text, at))
            if isinstance(found, int):
                return found
            key, start = found
            end = text.find(self.end_value, start)
            beyond = self.goes_on.search(text, start, end if end >= 0 else len(text))
            if end < 0 or beyond:
                # Not up to an end further on: the value would swallow what is between.
                at = len(text)
                if beyond:
                    at = start + len(text[start : beyond.start()].rstrip())
                raise _Broken(at, f"{self.end_value} of {key!r} is missing")
            # A value may stand on lines of its own; only that line break is not the value's.
            arguments[key] = text[start:end].removeprefix("\n").removesuffix("\n")
            at = end + len(self.end_value)

    def _is_beginning_of_tag(self, rest: str) -> bool:
        """Whether the text ends inside one of the tags that may come next."""
        if any(tag != rest and tag.startswith(rest) for tag in (self.closes, *self.tags)):
            return True
        return self.begun.fullmatch(rest) is not None

    def _end_of_broken(self, text: str, at: int) -> int:
        close = text.find(self.closes, at)
        following = self.starts.search(text, at)
        if close >= 0 and (following is None or close < following.start()):
            return close + len(self.closes)
        return following.start() if following else len(text)


class Qwen3CoderParser(TaggedCallParser):
    """Reads the calls of Qwen3-Coder, Qwen3.5 and newer, and of Nemotron 3.

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
    """

    name = "qwen3_coder"
    how_to_call = (
        "To call a tool, write:\n<tool_call>\n<function=TOOL>\n<parameter=ARGUMENT>\nVALUE\n"
        "</parameter>\n</function>\n</tool_call>"
    )
    starts = re.compile(r"<tool_call>|<function=")
    tags = ("</function>", "<function=", "<parameter=")
    begun = re.compile(r"<(?:function|parameter)=[^>\n]*+")
    goes_on = re.compile(r"<parameter=[^<>\n]*+>|</function>\s*+</tool_call>")
    end_value = "</parameter>"
    _function = re.compile(r"<function=([^<>\n]*+)>\s*+")
    _parameter = re.compile(r"<parameter=([^<>\n]*+)>")

    def write(self, call: ToolCall) -> str:
        """Write the text of a call; see `CallSyntax.write`."""
        values = "".join(
            f"<parameter={key}>\n{_plain(value)}\n</parameter>\n"
            for key, value in call.arguments.items()
        )
        return f"<tool_call>\n<function={call.name}>\n{values}</function>\n</tool_call>"

    def read_name(self, text: str, at: int) -> tuple[str, int]:
        """Read the name of a tool; see `TaggedCallParser.read_name`."""
        match = self._function.match(text, at)
        if match is None:
            raise _Broken(at, "expected <function=NAME> after <tool_call>")
        return match[1].strip(), match.end()

    def read_key(self, text: str, at: int) -> tuple[str, int] | int:
        """Read the name of an argument; see `TaggedCallParser.read_key`."""
        if text.startswith("</function>", at):
            return at + len("</function>")
        match = self._parameter.match(text, at)
        if match is None:
            raise _Broken(at, "expected <parameter=KEY> or </function>")
        return match[1].strip(), match.end()


class GlmParser(TaggedCallParser):
    """Reads the calls of GLM-4.5 and newer.

    <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>
    """

    name = "glm"
    how_to_call = (
        "To call a tool, write:\n<tool_call>TOOL\n<arg_key>ARGUMENT</arg_key>\n"
        "<arg_value>VALUE</arg_value>\n</tool_call>"
    )
    starts = re.compile(r"<tool_call>")
    tags = ("<arg_key>",)
    begun = re.compile(r"<arg_key>[^<>\n]*+(?:</arg_key>\s*+)?+(?:<[a-z/_]*+)?+")
    goes_on = re.compile(
        r"<arg_key>[^<>\n]*+</arg_key>\s*+<arg_value>|</tool_call>\s*+(?:<tool_call>|\Z)"
    )
    end_value = "</arg_value>"
    _tool = re.compile(r"[^<>\n{}]*+")
    _argument = re.compile(r"<arg_key>([^<>\n]*+)</arg_key>\s*+<arg_value>")

    def write(self, call: ToolCall) -> str:
        """Write the text of a call; see `CallSyntax.write`."""
        values = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_plain(value)}</arg_value>\n"
            for key, value in call.arguments.items()
        )
        return f"<tool_call>{call.name}\n{values}</tool_call>"

    def read_name(self, text: str, at: int) -> tuple[str, int]:
        """Read the name of a tool; see `TaggedCallParser.read_name`."""
        match = self._tool.match(text, at)
        assert match is not None  # it may be empty
        return match[0].strip(), match.end()

    def read_key(self, text: str, at: int) -> tuple[str, int] | int:
        """Read the name of an argument; see `TaggedCallParser.read_key`."""
        if text.startswith(self.closes, at):
            return at
        match = self._argument.match(text, at)
        if match is None:
            raise _Broken(at, "expected <arg_key>KEY</arg_key><arg_value> or </tool_call>")
        return match[1].strip(), match.end()


class MiniMaxParser(TaggedCallParser):
    """Reads the calls of MiniMax M2, one or several in a block.

    <minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>
    </minimax:tool_call>
    """

    name = "minimax_m2"
    how_to_call = (
        'To call a tool, write:\n<minimax:tool_call>\n<invoke name="TOOL">\n'
        '<parameter name="ARGUMENT">VALUE</parameter>\n</invoke>\n</minimax:tool_call>'
    )
    opens, closes, follows = "<minimax:tool_call>", "</minimax:tool_call>", "<invoke name="
    starts = re.compile(r"<minimax:tool_call>|<invoke name=")
    tags = ("</invoke>", "<invoke name=", "<parameter name=")
    begun = re.compile(r'<(?:invoke|parameter) name="?+[^>"\n]*+"?+')
    goes_on = re.compile(r'<parameter name="[^<>"\n]*+">|</invoke>\s*+(?:</minimax|<invoke)')
    end_value = "</parameter>"
    _invoke = re.compile(r'<invoke name="([^<>"\n]*+)">\s*+')
    _parameter = re.compile(r'<parameter name="([^<>"\n]*+)">')

    def write(self, call: ToolCall) -> str:
        """Write the text of a call; see `CallSyntax.write`."""
        values = "".join(
            f'<parameter name="{key}">{_lines_apart(_plain(value))}</parameter>\n'
            for key, value in call.arguments.items()
        )
        return f'{self.opens}\n<invoke name="{call.name}">\n{values}</invoke>\n{self.closes}'

    def read_name(self, text: str, at: int) -> tuple[str, int]:
        """Read the name of a tool; see `TaggedCallParser.read_name`."""
        match = self._invoke.match(text, at)
        if match is None:
            raise _Broken(at, 'expected <invoke name="NAME"> after <minimax:tool_call>')
        return match[1].strip(), match.end()

    def read_key(self, text: str, at: int) -> tuple[str, int] | int:
        """Read the name of an argument; see `TaggedCallParser.read_key`."""
        if text.startswith("</invoke>", at):
            return at + len("</invoke>")
        match = self._parameter.match(text, at)
        if match is None:
            raise _Broken(at, 'expected <parameter name="KEY"> or </invoke>')
        return match[1].strip(), match.end()


def _lines_apart(value: str) -> str:
    """A value whose outer line breaks are its own, on lines of their own."""
    return f"\n{value}\n" if value != value.strip("\n") else value


def _typed(arguments: Mapping[str, str], name: str, tools: Sequence[Tool]) -> dict[str, Any]:
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        return dict(arguments)
    schema = ArgumentSchema(tool.parameters)
    return {key: _typed_value(value, schema, key) for key, value in arguments.items()}


def _typed_value(value: str, schema: ArgumentSchema, key: str) -> Any:
    parts = schema.properties(key)
    listed = [one for part in parts for one in schema.listed(part)]
    if value in listed:
        return value
    lowered = value.strip().lower()
    word = {"true": True, "false": False, "null": None, "none": None}
    read = read_json(value.strip(), 0)
    whole = not read.error and read.end == len(value.strip())
    found = word.get(lowered, read.value)
    known = lowered in word or whole
    if known and any(_same(found, one) for one in listed):
        return found
    kinds = schema.kinds_of_any(parts)
    if "null" in kinds and lowered in ("null", "none"):
        return None
    if not kinds or "string" in kinds:
        return value
    if "boolean" in kinds and lowered in ("true", "false"):
        return lowered == "true"
    return read.value if whole else value


def _same(value: Any, other: Any) -> bool:
    """True for one value of JSON, in which 1 is not true."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
