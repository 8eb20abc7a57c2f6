"""Calls as Gemma 4 writes them: bare keys, and texts between marks of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.chat.calls.json_calls import MAX_DEPTH, JsonText, read_json, skip_space
from agentrl.chat.parser import Found, ToolCallParser
from agentrl.tool import Tool
from agentrl.types import CallStatus, ToolCall

_QUOTE = '<|"|>'
_KEY = re.compile(r'[^\n:,{}\[\]<>"]++')
_NUMBER = re.compile(r"-?\d++(?:\.\d++)?+(?:[eE][+-]?\d++)?+")
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "None": None}
_WORD = re.compile("|".join(_WORDS))


class _BrokenCall(Exception):
    """Where and why reading stopped; never leaves this module."""

    def __init__(self, at: int, error: str) -> None:
        super().__init__(error)
        self.at = at


class GemmaParser(ToolCallParser):
    """Reads calls as `<|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>,KEY:3}<tool_call|>`."""

    name = "gemma4"
    between_calls = ""
    how_to_call = (
        f"To call a tool, write, with {_QUOTE} around texts:\n"
        f"<|tool_call>call:TOOL{{ARGUMENT:{_QUOTE}VALUE{_QUOTE}}}<tool_call|>"
    )
    _open, _close = "<|tool_call>", "<tool_call|>"
    _name = re.compile(r"\s*+call:\s*+([^\s{}<>]*+)\s*+(?=\{)")

    def write(self, call: ToolCall) -> str:
        """Write the text of a call; see `CallSyntax.write`."""
        return f"{self._open}call:{call.name}{_written(dict(call.arguments))}{self._close}"

    def find(self, text: str, start: int, tools: Sequence[Tool]) -> Iterator[Found]:
        """Find the calls of a turn; see `ToolCallParser.find`."""
        text = JsonText(text)
        at = text.find(self._open, start)
        while at >= 0:
            found = self._read(text, at)
            yield found
            at = text.find(self._open, found.end)

    def _read(self, text: str, at: int) -> Found:
        try:
            match = self._name.match(text, at + len(self._open))
            if match is None:
                raise _BrokenCall(
                    at + len(self._open), "expected call:NAME{...} after <|tool_call>"
                )
            arguments, end = _value(text, match.end(), 0)
        except _BrokenCall as broken:
            status = CallStatus.MALFORMED if text[broken.at :].strip() else CallStatus.UNCLOSED
            end = self._end_of_broken(text, broken.at)
            return Found(start=at, end=end, status=status, error=str(broken))
        if not match[1]:
            error = "the call names no tool"
            end = self._end_of_broken(text, end)
            return Found(start=at, end=end, status=CallStatus.MISSING_NAME, error=error)
        behind = skip_space(text, end)
        if text.startswith(self._close, behind):
            end = behind + len(self._close)
            return Found(start=at, end=end, name=match[1], arguments=arguments)
        error = f"{self._close} is missing"
        end = self._end_of_broken(text, behind)
        if behind < len(text):
            return Found(start=at, end=end, status=CallStatus.MALFORMED, error=error)
        status = CallStatus.UNCLOSED
        return Found(
            start=at, end=end, name=match[1], arguments=arguments, status=status, error=error
        )

    def _end_of_broken(self, text: str, at: int) -> int:
        close, following = text.find(self._close, at), text.find(self._open, at)
        if close >= 0 and (following < 0 or close < following):
            return close + len(self._close)
        return following if following >= 0 else len(text)


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """One value at a position, and the position behind it; raises `_BrokenCall`."""
    at = skip_space(text, at)
    if depth > MAX_DEPTH:
        raise _BrokenCall(at, f"nested more than {MAX_DEPTH} levels deep")
    if text.startswith(_QUOTE, at):
        return _quoted(text, at)
    if text.startswith("{", at):
        return _members(text, at + 1, depth)
    if text.startswith("[", at):
        items: list[Any] = []
        at = skip_space(text, at + 1)
        while not text.startswith("]", at):
            item, at = _value(text, at, depth + 1)
            items.append(item)
            at = _behind_item(text, at, "]")
        return items, at + 1
    word = _WORD.match(text, at)
    if word:
        return _WORDS[word[0]], word.end()
    if text.startswith('"', at) or _NUMBER.match(text, at):
        read = read_json(text, at)
        if read.error:
            raise _BrokenCall(max(read.end, at), read.error)
        return read.value, read.end
    kinds = f"{_QUOTE}text{_QUOTE}, a number, true, false, null, a list or an object"
    raise _BrokenCall(at, f"expected a value: {kinds}")


def _members(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    at = skip_space(text, at)
    while not text.startswith("}", at):
        if text.startswith(_QUOTE, at):
            key, at = _quoted(text, at)
        elif match := _KEY.match(text, at):
            key, at = match[0].strip(), match.end()
        else:
            raise _BrokenCall(at, "expected the name of an argument, or '}'")
        at = skip_space(text, at)
        if not text.startswith(":", at):
            raise _BrokenCall(at, f"expected ':' behind {key[:40]!r}")
        members[key], at = _value(text, at + 1, depth + 1)
        at = _behind_item(text, at, "}")
    return members, at + 1


def _behind_item(text: str, at: int, close: str) -> int:
    """The position of the next item, or of what closes the items."""
    at = skip_space(text, at)
    if text.startswith(",", at):
        return skip_space(text, at + 1)
    if not text.startswith(close, at):
        raise _BrokenCall(at, f"expected ',' or '{close}'")
    return at


def _quoted(text: str, at: int) -> tuple[str, int]:
    begin = at + len(_QUOTE)
    end = text.find(_QUOTE, begin)
    if end < 0:
        raise _BrokenCall(len(text), f"a text is not closed with {_QUOTE}")
    return text[begin:end], end + len(_QUOTE)


def _written(value: Any) -> str:
    if isinstance(value, str):
        return f"{_QUOTE}{value}{_QUOTE}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(key)}:{_written(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)


def _key(key: str) -> str:
    bare = _KEY.fullmatch(key) and key == key.strip()
    return key if bare else f"{_QUOTE}{key}{_QUOTE}"
