"""Calls written as JSON: the `hermes`, `llama3_json` and `mistral` formats."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from agentrl.chat.parser import Found, ToolCallParser
from agentrl.tool import Tool
from agentrl.types import CallStatus, ToolCall

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SPACE = re.compile(r"\s*+")
_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"|([\[{])|([\]}])', re.DOTALL)
MAX_DEPTH = 64
"""Of values inside values. More is of no use to a tool, and breaks some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonValue:
    """One JSON value read from text, or why there is none."""

    value: Any = None
    """The value."""
    end: int
    """One past its last character; where reading stopped on an error."""
    error: str = ""
    """Empty if a value was read."""
    cut_off: bool = False
    """Whether the text ended before the value did."""


class JsonText(str):
    """Text in which a broken JSON value is found without reading what stands before it.

    `JSONDecodeError` counts the lines up to the error, which makes thousands of broken values in
    one long text quadratic; nothing here shows lines.
    """

    __slots__ = ()

    def count(self, *_: Any) -> int:
        """Return 0, whatever is counted."""
        return 0

    def rfind(self, *_: Any) -> int:
        """Return -1, whatever is looked for."""
        return -1


def read_json(text: str, start: int) -> JsonValue:
    """Read one strict JSON value at `start`: no NaN, no infinity, no lone surrogate.

    Args:
        text: as `JsonText` where many values may be read from it.
        start: first character of the value.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        cut_off = skip_space(text, error.pos) == len(text) or error.msg.startswith("Unterminated")
        said = error.msg.removesuffix(" at")
        message = f"{said} at character {max(0, error.pos - start)} of the JSON"
        return JsonValue(end=error.pos, error=message, cut_off=cut_off)
    except RecursionError as error:
        return JsonValue(end=_too_deep(text, start), error=f"not usable JSON: {str(error)[:120]}")
    except ValueError as error:  # numbers out of range, or with too many digits
        return JsonValue(end=start, error=f"not usable JSON: {str(error)[:120]}")
    written = text[start:end]
    if "\\u" in written and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        return JsonValue(end=end, error="a \\u escape is half of a surrogate pair")
    if _depth(written) > MAX_DEPTH:
        return JsonValue(end=end, error=f"nested more than {MAX_DEPTH} levels deep")
    return JsonValue(value=value, end=end)


def _too_deep(text: str, start: int) -> int:
    """Where a text from `start` is nested deeper than `MAX_DEPTH`."""
    depth = 0
    for match in _BRACKET.finditer(text, start):
        depth += (match[1] is not None) - (match[2] is not None)
        if depth > MAX_DEPTH:
            return match.end()
    return len(text)


def _depth(written: str) -> int:
    """How deep a valid JSON text is nested."""
    if written.count("[") + written.count("{") <= MAX_DEPTH:
        return 0
    depth = most = 0
    for match in _BRACKET.finditer(written):
        depth += (match[1] is not None) - (match[2] is not None)
        most = max(most, depth)
    return most


def read_call(value: Any, start: int, end: int, keys: Sequence[str] = ("arguments",)) -> Found:
    """A call from its JSON value.

    Args:
        value: anything JSON can be.
        start: first character of the span.
        end: one past the last character of the span.
        keys: names under which the arguments may stand.
    """
    if not isinstance(value, Mapping):
        return Found(
            start=start,
            end=end,
            status=CallStatus.MALFORMED,
            error=f"expected a JSON object with 'name' and {keys[0]!r}, got {_kind(value)}",
        )
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return Found(
            start=start,
            end=end,
            status=CallStatus.MISSING_NAME,
            error="the call has no 'name', or it is not a non-empty string",
        )
    key = next((key for key in keys if key in value), None)
    arguments = value[key] if key is not None else None
    if not isinstance(arguments, Mapping):
        got = f"got {_kind(arguments)}" if key is not None else "which is missing"
        return Found(
            start=start,
            end=end,
            name=name,
            status=CallStatus.INVALID_ARGUMENTS,
            error=f"expected an object under {keys[0]!r}, {got}",
        )
    return Found(start=start, end=end, name=name, arguments=arguments)


def _written(call: ToolCall, key: str) -> str:
    return json.dumps({"name": call.name, key: dict(call.arguments)}, ensure_ascii=False)


class HermesParser(ToolCallParser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3."""

    name = "hermes"
    how_to_call = (
        "To call a tool, write a JSON object with its name and arguments between these tags:\n"
        '<tool_call>\n{"name": "TOOL", "arguments": {"ARGUMENT": VALUE}}\n</tool_call>'
    )
    _open = "<tool_call>"
    _close = "</tool_call>"

    def write(self, call: ToolCall) -> str:
        """Write the text of a call; see `CallSyntax.write`."""
        return f"{self._open}\n{_written(call, 'arguments')}\n{self._close}"

    def find(self, text: str, start: int, tools: Sequence[Tool]) -> Iterator[Found]:
        """Find the calls of a turn; see `ToolCallParser.find`."""
        text = JsonText(text)
        at = text.find(self._open, start)
        while at >= 0:
            found = self._read(text, at)
            yield found
            at = text.find(self._open, found.end)

    def _read(self, text: str, at: int) -> Found:
        inside = skip_space(text, at + len(self._open))
        read = read_json(text, inside)
        after = skip_space(text, read.end)
        if not read.error and text.startswith(self._close, after):
            return read_call(read.value, at, after + len(self._close))
        # A JSON string may hold the closing tag, so it is looked for only after what was read.
        beyond = inside if read.error else read.end
        close, following = text.find(self._close, beyond), text.find(self._open, beyond)
        if close >= 0 and (following < 0 or close < following):
            error = read.error or "there is text between the JSON object and </tool_call>"
            end = close + len(self._close)
            return Found(start=at, end=end, status=CallStatus.MALFORMED, error=error)
        end = following if following >= 0 else len(text)
        missing = "</tool_call> is missing"
        if read.error:
            error = f"{missing}; {read.error}"
            return Found(start=at, end=end, status=CallStatus.UNCLOSED, error=error)
        return _unclosed(read_call(read.value, at, end), missing)


class Llama3JsonParser(ToolCallParser):
    """`{"name": ..., "parameters": {...}}`, on its own or after `<|python_tag|>`; several are
    separated by `;`: Llama 3.1 and later.

    An object on a line of its own, after the tag or after `;` is meant as a call, also if it is
    broken. Between other words only a whole call is one, and nothing inside a larger object is.
    """

    name = "llama3_json"
    between_calls = "; "
    how_to_call = (
        "To call a tool, answer with nothing but a JSON object:\n"
        '{"name": "TOOL", "parameters": {"ARGUMENT": VALUE}}'
    )
    _keys = ("parameters", "arguments")
    _start = re.compile(r"<\|python_tag\|>|\{(?=\s*+\")")
    _key = re.compile(r"\{\s*+\"(?:name|parameters|arguments|type|function)\"\s*+:")
    _meant = re.compile(rf"<\|python_tag\|>|^[ \t]*+(?={_key.pattern})", re.MULTILINE)

    def write(self, call: ToolCall) -> str:
        """Write the text of a call; see `CallSyntax.write`."""
        return _written(call, "parameters")

    def find(self, text: str, start: int, tools: Sequence[Tool]) -> Iterator[Found]:
        """Find the calls of a turn; see `ToolCallParser.find`."""
        text = JsonText(text)
        at = start
        while match := self._start.search(text, at):
            tagged = match[0] != "{"
            inside = skip_space(text, match.end()) if tagged else match.start()
            read = read_json(text, inside)
            found = self._found(text, match.start(), read, inside, tagged)
            if found is None:
                at = _beyond(text, inside, read)
            while found is not None:
                yield found
                at = found.end
                found = self._next(text, at) if found.status is CallStatus.OK else None

    def _found(
        self, text: str, begin: int, read: JsonValue, inside: int, sure: bool
    ) -> Found | None:
        """The call that begins at `begin`; `sure` of one, whatever is there."""
        line = begin
        while line and text[line - 1] in " \t":
            line -= 1
        alone = not line or text[line - 1] == "\n"
        meant = sure or (alone and self._key.match(text, begin) is not None)
        if read.error and meant:
            following = self._meant.search(text, max(inside, begin + 1))
            end = following.start() if following else len(text)
            status = CallStatus.UNCLOSED if read.cut_off else CallStatus.MALFORMED
            return Found(start=begin, end=max(end, inside), status=status, error=read.error)
        # Without the tag, an object that has no arguments is an answer that happens to be JSON.
        is_call = isinstance(read.value, Mapping) and any(key in read.value for key in self._keys)
        if read.error or not (sure or is_call):
            return None
        found = read_call(read.value, begin, read.end, self._keys)
        return found if meant or found.status is CallStatus.OK else None

    def _next(self, text: str, at: int) -> Found | None:
        """The call behind a semicolon, which becomes a part of it."""
        semicolon = skip_space(text, at)
        inside = skip_space(text, semicolon + 1)
        if not text.startswith(";", semicolon) or not text.startswith("{", inside):
            return None
        return self._found(text, at, read_json(text, inside), inside, True)


class MistralParser(ToolCallParser):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, and the later
    `[TOOL_CALLS]name[ARGS]{...}`: Mistral."""

    name = "mistral"
    between_calls = ""
    how_to_call = (
        'To call a tool, write:\n[TOOL_CALLS] [{"name": "TOOL", "arguments": {"ARGUMENT": VALUE}}]'
    )
    _open = "[TOOL_CALLS]"
    _named = re.compile(r"([\w.:-]*+)\s*+(?:\[CALL_ID\]\s*+(\w*+)\s*+)?+(?:\[ARGS\])?+\s*+(?=\{)")
    _own_id = re.compile(r"[A-Za-z0-9]{9}")

    def write(self, call: ToolCall) -> str:
        """Write the text of a call; see `CallSyntax.write`."""
        return f"{self._open} [{_written(call, 'arguments')}]"

    def find(self, text: str, start: int, tools: Sequence[Tool]) -> Iterator[Found]:
        """Find the calls of a turn; see `ToolCallParser.find`."""
        text = JsonText(text)
        at = text.find(self._open, start)
        while at >= 0:
            inside = skip_space(text, at + len(self._open))
            if text.startswith("[", inside):
                calls = self._read_list(text, at, inside + 1)
            else:
                calls = [self._read_named(text, at, inside)]
            yield from calls
            at = text.find(self._open, calls[-1].end)

    def _read_list(self, text: str, at: int, inside: int) -> list[Found]:
        calls: list[Found] = []
        begin, position = at, skip_space(text, inside)
        while True:
            read = read_json(text, position)
            if read.error:
                return [*calls, self._broken(text, begin, position, read)]
            found = read_call(read.value, begin, read.end)
            own = read.value.get("id") if isinstance(read.value, Mapping) else None
            if isinstance(own, str) and self._own_id.fullmatch(own):
                found = replace(found, call_id=own)
            after = skip_space(text, read.end)
            if text.startswith(",", after):
                calls.append(found)
                # The comma belongs to the call behind it: it is nothing the model said.
                begin, position = read.end, skip_space(text, after + 1)
                continue
            if text.startswith("]", after):
                return [*calls, replace(found, end=after + 1)]
            if after < len(text):
                error = "expected ',' or ']' after a call"
                end = self._end_of_broken(text, after)
                broken = Found(start=begin, end=end, status=CallStatus.MALFORMED, error=error)
                return [*calls, broken]
            return [*calls, _unclosed(found, "the ']' that ends the list of calls is missing")]

    def _read_named(self, text: str, at: int, inside: int) -> Found:
        match = self._named.match(text, inside)
        if match is None:
            status = CallStatus.MALFORMED if text[inside:].strip() else CallStatus.UNCLOSED
            end = self._end_of_broken(text, inside)
            error = "expected a list of calls, or a name and arguments, after [TOOL_CALLS]"
            return Found(start=at, end=end, status=status, error=error)
        read = read_json(text, match.end())
        if read.error:
            return self._broken(text, at, match.end(), read)
        if not match[1]:
            return read_call(read.value, at, read.end)
        found = read_call({"name": match[1], "arguments": read.value}, at, read.end)
        own = match[2] if match[2] and self._own_id.fullmatch(match[2]) else None
        return replace(found, call_id=own)

    def _broken(self, text: str, begin: int, position: int, read: JsonValue) -> Found:
        status = CallStatus.UNCLOSED if read.cut_off else CallStatus.MALFORMED
        end = self._end_of_broken(text, position)
        return Found(start=begin, end=end, status=status, error=read.error)

    def _end_of_broken(self, text: str, position: int) -> int:
        following = text.find(self._open, position)
        return following if following >= 0 else len(text)


def _unclosed(found: Found, error: str) -> Found:
    """What was read of a call stays readable; a broken one keeps its own status."""
    if found.status is not CallStatus.OK:
        return found
    return replace(found, status=CallStatus.UNCLOSED, error=error)


def _beyond(text: str, inside: int, read: JsonValue) -> int:
    """Where to go on behind `{`, which is no call: never inside what has been read, since text
    that opens object after object would be read again from each of them."""
    if read.end > inside:
        return read.end
    # A number that cannot be used, somewhere in this line.
    line = text.find("\n", inside)
    return line if line >= 0 else len(text)


def skip_space(text: str, at: int) -> int:
    """The position of the first character that is no space."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:40]} is out of range")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
