"""Tools of which only the schema is known: they can be offered, not called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from agentrl.errors import ChatError, ToolError
from agentrl.sandbox import Sandbox
from agentrl.tool import Tool


class OfferedTool(Tool):
    """A tool that stands in a prompt."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Take an OpenAI function schema, wrapped in `{"type": "function", ...}` or alone."""
        function = schema.get("function", schema)
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise ChatError(
                f"tool schema {ascii(dict(schema))[:80]} names no function; expected "
                '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
            )
        self.name = name
        self.description = str(function.get("description") or "")
        parameters = function.get("parameters")
        empty = {"type": "object", "properties": {}}
        self.parameters = parameters if isinstance(parameters, Mapping) else empty
        wrapped = "function" in schema
        self._schema = dict(schema) if wrapped else {"type": "function", "function": dict(function)}

    async def call(self, arguments: Mapping[str, Any], sandbox: Sandbox | None) -> NoReturn:
        """Refuse: there is nothing to run."""
        raise ToolError(f"{self.name} cannot be called here: only its schema is known")

    def schema(self) -> dict[str, Any]:
        """The schema as it was given, for the template to show."""
        return self._schema


def schema_tool(schema: Mapping[str, Any]) -> Tool:
    """A tool made of its OpenAI function schema alone.

    Raises:
        ChatError: the schema names no function.
    """
    return OfferedTool(schema)
