"""The parsers by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.chat.auto import AutoParser
from agentrl.chat.calls.fenced_code import FencedCodeParser
from agentrl.chat.calls.gemma_calls import GemmaParser
from agentrl.chat.calls.json_calls import HermesParser, Llama3JsonParser, MistralParser
from agentrl.chat.calls.marked_json import (
    DeepSeekParser,
    FencedJsonParser,
    HarmonyParser,
    KimiParser,
)
from agentrl.chat.calls.tagged_calls import GlmParser, MiniMaxParser, Qwen3CoderParser
from agentrl.chat.parser import ToolCallParser
from agentrl.errors import ConfigError
from agentrl.plugins.registry import Registry

NO_PARSER = "none"
"""Value of `chat.tool_parser` with which no call is read."""
AUTO = AutoParser.name
"""Value of `chat.tool_parser` with which the chat template decides."""


def _entry(name: str, value: Any) -> type[ToolCallParser]:
    if not (isinstance(value, type) and issubclass(value, ToolCallParser)):
        raise ConfigError(
            f"chat.tool_parser {name!r} names {value!r}, expected a subclass of "
            "agentrl.chat.ToolCallParser"
        )
    missing = [field for field in ("name", "how_to_call") if not hasattr(value, field)]
    if missing or value.__abstractmethods__:
        missing += sorted(value.__abstractmethods__)
        raise ConfigError(f"chat.tool_parser {name!r} does not define {', '.join(missing)}")
    return value


PARSERS = Registry[type[ToolCallParser]](
    "chat.tool_parser", own="a parser of your own", entry=_entry, words=(NO_PARSER, AUTO)
)
for parser in (
    DeepSeekParser,
    FencedCodeParser,
    FencedJsonParser,
    GemmaParser,
    GlmParser,
    HarmonyParser,
    HermesParser,
    KimiParser,
    Llama3JsonParser,
    MiniMaxParser,
    MistralParser,
    Qwen3CoderParser,
):
    PARSERS.add(parser.name, parser, source=parser)


def build_parser(name: str, *, base: Path | None = None) -> ToolCallParser | None:
    """The parser that `chat.tool_parser` names; None for `none`; see `ToolCallParser.for_chat`.

    Args:
        name: registered, or an import string of a `ToolCallParser`.
        base: folder that relative file paths start from; needed at the first time only.

    Raises:
        ConfigError: there is no such parser; lists those there are.
    """
    if name == AUTO:
        return AutoParser()
    return None if name == NO_PARSER else PARSERS.find(name, base=base)()
