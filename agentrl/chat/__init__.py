"""Chat template to ids, turns that only append, and tool-call parsers."""

from agentrl.chat.build import TEMPLATES, build_chat
from agentrl.chat.format import ChatFormat
from agentrl.chat.parser import Found, ParsedTurn, ToolCallParser
from agentrl.chat.parsers import PARSERS, build_parser
from agentrl.chat.tokenizer import TokenizerLike

__all__ = [
    "PARSERS",
    "TEMPLATES",
    "ChatFormat",
    "Found",
    "ParsedTurn",
    "TokenizerLike",
    "ToolCallParser",
    "build_chat",
    "build_parser",
]
