"""The lines of a player: text of the model, calls of tools, and words to the game itself."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import choices
from agentrl.tool import Tool
from agentrl.types import ToolCall

HELP = """\
text                  what the model says in this turn; a line that ends with \\ goes on in the next
NAME(arg="...", ...)  a call of a tool, written as in Python
/call NAME {"arg": 1} the same with arguments as JSON
/say TEXT             text as it is, also such that looks like a call or begins with /
/solution             let the environment's own solution play on from here
/tools                the tools and their arguments
/quit                 leave; so does the end of the input"""
_CALL = re.compile(r"\s*(\w+)\s*\(.*\)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedWord:
    """A word to the game itself."""

    name: str
    """One of `help`, `tools`, `solution`, `quit`."""


class TypedWrong(Exception):
    """A line that cannot be read; the message has the right form."""


def read_typed(line: str, tools: Mapping[str, Tool]) -> str | ToolCall | TypedWord:
    """The turn or the word that a line stands for.

    Args:
        line: without the line break at its end.
        tools: offered now, by name; only their names make a line in Python's syntax a call.

    Raises:
        TypedWrong: it begins as a word or a call, and is none.
    """
    if line.startswith("/"):
        word, _, rest = line[1:].partition(" ")
        if word == "say":
            return rest
        if word == "call":
            name, _, arguments = rest.strip().partition(" ")
            return ToolCall(_known(name, tools), _json_object(arguments))
        words = ("call", "help", "quit", "say", "solution", "tools")
        if word not in words:
            raise TypedWrong(f"/{word}: {choices(word, words)}; /say TEXT says it as text")
        return TypedWord(name=word)
    found = _CALL.fullmatch(line)
    if found is None or found[1] not in tools:
        return line
    return ToolCall(found[1], _python_arguments(line.strip(), tools[found[1]]))


def _known(name: str, tools: Mapping[str, Tool]) -> str:
    if name not in tools:
        raise TypedWrong(f"/call: {choices(name, tools)}")
    return name


def _json_object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise TypedWrong(f'/call: the arguments are no JSON ({error}), as {{"a": 1}}') from None
    if not isinstance(value, dict):
        raise TypedWrong(f'/call: the arguments are {text!r}, expected an object, as {{"a": 1}}')
    return value


def _python_arguments(text: str, tool: Tool) -> Mapping[str, Any]:
    """Arguments of a call in Python's syntax; those without a name in the order of the schema."""
    names = [str(name) for name in tool.parameters.get("properties", {})]
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("it is no single call")
        values = [ast.literal_eval(value) for value in call.args]
        if any(word.arg is None for word in call.keywords):
            raise ValueError("** is no value")
        named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        if len(values) > len(names):
            raise ValueError(f"{len(values)} values for {len(names)} parameters")
        arguments = {**dict(zip(names, values, strict=False)), **named}
        json.dumps(arguments)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        shown = ", ".join(f"{name}=..." for name in names)
        raise TypedWrong(
            f"cannot read this call ({error}); expected {tool.name}({shown}) with plain values, or "
            "/say TEXT to say it as text"
        ) from None
    return arguments
