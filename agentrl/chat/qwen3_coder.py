"""Calls written as nested tags: the `qwen3_coder` format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.chat.json_calls import read_json
from agentrl.chat.parser import Found, ToolCallParser
from agentrl.tool import Tool
from agentrl.types import CallStatus, ToolCall

_CLOSE = "</tool_call>"
_END_PARAMETER = "</parameter>"
_END_FUNCTION = "</function>"
_START = re.compile(r"<tool_call>|<function=")
_FUNCTION = re.compile(r"<function=([^<>\n]*+)>\s*+")
_PARAMETER = re.compile(r"<parameter=([^<>\n]*+)>")
_GOES_ON = re.compile(r"<parameter=[^<>\n]*+>|</function>\s*+</tool_call>")
"""What stands behind a value and the space after it, and never in one."""
_SPACE = re.compile(r"\s*+")


class _Broken(Exception):
    """Where and why reading stopped; never leaves this module."""

    def __init__(self, at: int, error: str) -> None:
        super().__init__(error)
        self.at = at


class Qwen3CoderParser(ToolCallParser):
    """Reads calls that are written as nested tags.

        <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>

    Values are text. With the schemas of the tools they become what the schema says; without, or
    where they do not fit, they stay text.
    """

    name = "qwen3_coder"
    how_to_call = (
        "To call a tool, write:\n<tool_call>\n<function=TOOL>\n<parameter=ARGUMENT>\nVALUE\n"
        "</parameter>\n</function>\n</tool_call>"
    )

    def write(self, call: ToolCall) -> str:
        """Do what `CallSyntax.write` says."""
        values = "".join(
            f"<parameter={key}>\n{_plain(value)}\n</parameter>\n"
            for key, value in call.arguments.items()
        )
        return f"<tool_call>\n<function={call.name}>\n{values}</function>\n</tool_call>"

    def find(self, text: str, start: int, tools: Sequence[Tool]) -> Iterator[Found]:
        """Do what `ToolCallParser.find` says."""
        match = _START.search(text, start)
        while match:
            found = self._read(text, match.start(), tools)
            yield found
            match = _START.search(text, found.end)

    def _read(self, text: str, at: int, tools: Sequence[Tool]) -> Found:
        wrapped = text.startswith("<tool_call>", at)
        inside = at + len("<tool_call>") if wrapped else at
        name, arguments = "", {}
        try:
            name, inside = _read_name(text, inside)
            inside = _read_parameters(text, inside, arguments)
            end = _skip(text, inside)
            if wrapped and not text.startswith(_CLOSE, end):
                raise _Broken(end, "</tool_call> is missing")
        except _Broken as broken:
            cut_off = not text[broken.at :].strip() or _is_beginning_of_tag(text[broken.at :])
            status = CallStatus.UNCLOSED if cut_off else CallStatus.MALFORMED
            end = _end_of_broken(text, max(broken.at, at + 1))
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
        end = end + len(_CLOSE) if wrapped else inside
        if not name:
            error = "<function=> names no tool"
            return Found(start=at, end=end, status=CallStatus.MISSING_NAME, error=error)
        return Found(start=at, end=end, name=name, arguments=_typed(arguments, name, tools))


def _read_name(text: str, at: int) -> tuple[str, int]:
    at = _skip(text, at)
    match = _FUNCTION.match(text, at)
    if match is None:
        raise _Broken(at, "expected <function=NAME> after <tool_call>")
    return match[1].strip(), match.end()


def _read_parameters(text: str, at: int, arguments: dict[str, Any]) -> int:
    """Fill `arguments`; the position after `</function>`."""
    while True:
        at = _skip(text, at)
        if text.startswith(_END_FUNCTION, at):
            return at + len(_END_FUNCTION)
        match = _PARAMETER.match(text, at)
        if match is None:
            raise _Broken(at, "expected <parameter=KEY> or </function>")
        end = text.find(_END_PARAMETER, match.end())
        beyond = _GOES_ON.search(text, match.end(), end if end >= 0 else len(text))
        if end < 0 or beyond:
            # Not up to a </parameter> further on: the value would swallow what is between.
            at = len(text)
            if beyond:
                at = match.end() + len(text[match.end() : beyond.start()].rstrip())
            raise _Broken(at, f"</parameter> of {match[1]!r} is missing")
        value = text[match.end() : end]
        # The format puts each value on lines of its own; only that line break is not the value's.
        value = value.removeprefix("\n").removesuffix("\n")
        arguments[match[1].strip()] = value
        at = end + len(_END_PARAMETER)


def _typed(arguments: Mapping[str, str], name: str, tools: Sequence[Tool]) -> dict[str, Any]:
    tool = next((tool for tool in tools if tool.name == name), None)
    properties = tool.parameters.get("properties", {}) if tool else {}
    typed: dict[str, Any] = {}
    for key, value in arguments.items():
        typed[key] = _typed_value(value, properties.get(key))
    return typed


def _typed_value(value: str, schema: Any) -> Any:
    kinds = _kinds(schema)
    lowered = value.strip()
    if "null" in kinds and lowered.lower() in ("null", "none"):
        return None
    if not kinds or "string" in kinds:
        return value
    if "boolean" in kinds and lowered.lower() in ("true", "false"):
        return lowered.lower() == "true"
    read = read_json(lowered, 0)
    return value if read.error or read.end != len(lowered) else read.value


def _kinds(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    declared = schema.get("type", ())
    kinds = {declared} if isinstance(declared, str) else set(declared)
    for option in schema.get("anyOf", ()):
        kinds |= _kinds(option)
    return kinds


def _is_beginning_of_tag(rest: str) -> bool:
    """Whether the text ends inside one of the tags that may come next."""
    tags = (_CLOSE, _END_FUNCTION, "<function=", "<parameter=")
    if any(tag.startswith(rest) for tag in tags):
        return True
    return rest.startswith(tags[2:]) and ">" not in rest and "\n" not in rest


def _end_of_broken(text: str, at: int) -> int:
    close = text.find(_CLOSE, at)
    following = _START.search(text, at)
    if close >= 0 and (following is None or close < following.start()):
        return close + len(_CLOSE)
    return following.start() if following else len(text)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
