"""The syntax of calls: the instruction for the model, and the text of one call.

For templates that do not render tools or calls. The parser of a run is a `CallSyntax`, so that the
description asks for exactly what the parser reads.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentrl.tool import Tool
from agentrl.types import ToolCall


class CallSyntax(ABC):
    """One way to write tool calls."""

    name: str
    """As in `chat.tool_parser`."""
    names_tools: bool = True
    """Whether the model names the tool it calls. If not, and no offered tool has the name the
    parser gives, the call is left to the environment."""
    between_calls: str = "\n"
    """What stands between two calls of one turn."""
    how_to_call: str
    """One sentence and an example that show the model how to write a call."""

    def describe(self, tools: Sequence[Tool]) -> str:
        """The text about `tools` in the system message.

        Args:
            tools: what is offered; at least one.

        Raises:
            ChatError: a call cannot name one of the tools.
        """
        lines = [json.dumps(tool.schema()["function"], ensure_ascii=False) for tool in tools]
        return "You have these tools:\n" + "\n".join(lines) + f"\n\n{self.how_to_call}"

    @abstractmethod
    def write(self, call: ToolCall) -> str:
        """The text of a call, as `ToolCallParser.find` reads it."""
