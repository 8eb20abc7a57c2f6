"""The contract of a tool: a name, a JSON schema and one coroutine.

A `ToolError` raised by a tool is shown to the model; any other exception is infrastructure and
ends the rollout. A tool receives its sandbox; it never makes one.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agentrl.errors import ConfigError, ToolError
from agentrl.sandbox import Sandbox
from agentrl.types import ToolResult


class Tool(ABC):
    """Something the model can call."""

    name: str
    """What the model writes to call it."""
    description: str
    """What the model is told about it."""
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object schema."""
    timeout_s: float = 30.0
    """Wall-clock limit of one call in seconds."""
    needs_sandbox: bool = False
    """Whether `call` wants a sandbox; the loop opens one per rollout on the first such call."""

    @abstractmethod
    async def call(self, arguments: Mapping[str, Any], sandbox: Sandbox | None) -> ToolResult:
        """Run with arguments that have passed `validate`.

        Raises:
            ToolError: shown to the model.
        """

    def validate(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check and coerce the arguments; the default accepts any object.

        Raises:
            ToolError: what does not fit, in words for the model.
        """
        return arguments

    def schema(self) -> dict[str, Any]:
        """The entry a chat template expects in its `tools` list."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


class FunctionTool(Tool):
    """A Python function as a tool: schema from its signature, text from its docstring.

    A parameter named `sandbox` receives the sandbox of the rollout and is hidden from the model.
    Google-style `Args:` lines become the descriptions of the parameters.

    Example:
        >>> async def add(a: float, b: float) -> str:
        ...     '''Add two numbers.
        ...
        ...     Args:
        ...         a: the first number
        ...         b: the second number
        ...     '''
        ...     return str(a + b)
        >>> FunctionTool(add).parameters["required"]
        ['a', 'b']
    """

    def __init__(self, function: Callable[..., Any], *, timeout_s: float = 30.0) -> None:
        """Derive name, description and schema.

        Raises:
            ConfigError: no docstring, an unannotated or variadic parameter.
        """
        self.name = getattr(function, "__name__", type(function).__name__)
        self.timeout_s = timeout_s
        self._function = function
        doc = inspect.getdoc(function) or ""
        if not doc:
            raise ConfigError(
                f"tool {self.name!r} has no docstring; the model is told what it says, so write "
                "one sentence and an 'Args:' section"
            )
        self.description, notes = _split_docstring(doc)
        hints = get_type_hints(function)
        fields: dict[str, Any] = {}
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name == "sandbox":
                self.needs_sandbox = True
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise ConfigError(f"tool {self.name!r}: *{parameter.name} has no JSON schema")
            if parameter.name not in hints:
                raise ConfigError(f"tool {self.name!r}: parameter {parameter.name!r} has no type")
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints[parameter.name], default)
        self._model: type[BaseModel] = create_model(
            f"{self.name}_arguments", __config__=ConfigDict(extra="forbid"), **fields
        )
        schema = self._model.model_json_schema()
        schema.pop("title", None)
        for name, entry in schema.get("properties", {}).items():
            entry.pop("title", None)
            if name in notes:
                entry["description"] = notes[name]
        self.parameters = schema

    def validate(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check against the signature; see `Tool.validate`."""
        try:
            model = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            lines = [
                f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}"
                for item in error.errors()
            ]
            raise ToolError(f"Invalid arguments for {self.name}: {'; '.join(lines)}") from None
        return {name: getattr(model, name) for name in type(model).model_fields}

    async def call(self, arguments: Mapping[str, Any], sandbox: Sandbox | None) -> ToolResult:
        """Await the function (or call it, if it is not a coroutine function)."""
        extra = {"sandbox": sandbox} if self.needs_sandbox else {}
        value = self._function(**arguments, **extra)
        if inspect.isawaitable(value):
            value = await value
        return value if isinstance(value, ToolResult) else ToolResult(text=str(value))


_ARGUMENT = re.compile(r"^\s{2,}(\*{0,2}\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


def _split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The text before `Args:` and the description of each argument."""
    head, _, tail = doc.partition("\nArgs:")
    notes: dict[str, str] = {}
    current = ""
    for line in tail.splitlines():
        if match := _ARGUMENT.match(line):
            current = match[1].lstrip("*")
            notes[current] = match[2].strip()
        elif current and line.startswith("     ") and line.strip():
            notes[current] += " " + line.strip()
        elif line and not line.startswith(" "):
            break
    return head.strip(), notes
