"""The parsers by name."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.chat.fenced_code import FencedCodeParser
from agentrl.chat.json_calls import HermesParser, Llama3JsonParser, MistralParser
from agentrl.chat.parser import ToolCallParser
from agentrl.chat.qwen3_coder import Qwen3CoderParser
from agentrl.errors import ConfigError, choices

PARSERS: Mapping[str, type[ToolCallParser]] = {
    parser.name: parser
    for parser in (
        FencedCodeParser,
        HermesParser,
        Llama3JsonParser,
        MistralParser,
        Qwen3CoderParser,
    )
}


def check_parser_name(name: str) -> None:
    """Check `chat.tool_parser`.

    Raises:
        ConfigError: no parser has that name; lists those there are.
    """
    if name != "none" and name not in PARSERS:
        raise ConfigError(f"chat.tool_parser: {choices(name, [*PARSERS, 'none'])}")


def build_parser(name: str) -> ToolCallParser | None:
    """The parser called `name`; None for `none`.

    Raises:
        ConfigError: no parser has that name; lists those there are.
    """
    check_parser_name(name)
    return PARSERS[name]() if name != "none" else None
