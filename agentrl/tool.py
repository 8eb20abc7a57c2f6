"""The contract of a tool: a name, a JSON schema and one coroutine.

A `ToolError` raised by a tool is shown to the model; any other exception is infrastructure and
ends the rollout. A tool receives its sandbox; it never makes one.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import PydanticJsonSchemaWarning
from pydantic_core import to_json

from agentrl.errors import ConfigError, ToolError
from agentrl.sandbox import Sandbox
from agentrl.types import ToolResult


class Tool(ABC):
    """Something the model can call."""

    name: str
    """Name the model calls it by."""
    description: str
    """Description shown to the model."""
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object schema."""
    timeout_s: float = 30.0
    """Wall-clock limit of one call in seconds."""
    needs_sandbox: bool = False
    """Whether `call` wants a sandbox; the loop opens one per rollout on the first such call."""

    async def make_ready(self) -> None:  # noqa: B027 - optional by design
        """Start what a call needs, such as a server; called before each call, outside its limit.

        It bounds itself, since starting is not the model's doing; the rollout's time is its last
        limit. The default needs nothing.
        """

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

    def fresh(self) -> Tool:
        """The tool for one rollout; called once for each.

        A tool that keeps something between calls gives a new one; the default has nothing to keep
        and gives itself.
        """
        return self

    async def close(self) -> None:  # noqa: B027 - optional by design
        """Free what one rollout's calls left, before its sandbox closes.

        Called once on what `fresh` gave. A tool that gives itself must not free here what other
        rollouts use.
        """

    def schema(self) -> dict[str, Any]:
        """The entry a chat template expects in its `tools` list."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}

    def __repr__(self) -> str:
        # Two episodes that offer the same tools look the same, whatever their addresses.
        return f"{type(self).__name__}({self.name!r})"


class ToolSet(ABC):
    """Tools that share something which is open as long as a process rolls out: a connection."""

    @abstractmethod
    async def open(self) -> Sequence[Tool]:
        """Open it and return which tools there are; called once, before the first rollout.

        Raises:
            ConfigError: it cannot be opened; says what was tried and what to do.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close it, after the last rollout; also after an `open` that failed. Idempotent."""


class FunctionTool(Tool):
    """A Python function as a tool: schema from its signature, text from its docstring.

    A parameter named `sandbox` receives the sandbox of the rollout and is hidden from the model.
    Google-style `Args:` lines become the descriptions of the parameters. A function that is not a
    coroutine function runs in the event loop, so it must not wait for anything.

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

    def __init__(
        self, function: Callable[..., Any], *, name: str = "", timeout_s: float | None = None
    ) -> None:
        """Derive name, description and schema.

        Args:
            function: what a call runs; may be a bound method.
            name: what the model writes; default the name of the function.
            timeout_s: wall-clock limit of one call in seconds; default 30, and for a function that
                takes the sandbox none: each of its commands has the limit of the sandbox, and all
                of them that of the rollout.

        Raises:
            ConfigError: no docstring, or a parameter without a type or whose type has no JSON
                schema.
        """
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self._function = function
        doc = inspect.getdoc(function) or ""
        if not doc:
            raise ConfigError(
                f"tool {self.name!r} has no docstring; the model is told what it says, so write "
                "one sentence and an 'Args:' section"
            )
        self.description, notes = _split_docstring(doc)
        fields = _fields(self.name, function)
        self.needs_sandbox = fields.pop("sandbox", None) is not None
        unset = math.inf if self.needs_sandbox else Tool.timeout_s
        self.timeout_s = unset if timeout_s is None else timeout_s
        self._model, self.parameters = _arguments_model(self.name, fields, notes)
        self._names = tuple(fields)

    def validate(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check against the signature; see `Tool.validate`.

        As "3" is taken for the number, a list or object may come as its JSON text: models write
        `"[1, 50]"` for `[1, 50]`.
        """
        try:
            model = self._validated(dict(arguments))
        except ValidationError as error:
            lines = [
                f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}"
                for item in error.errors()
            ]
            raise ToolError(f"Invalid arguments for {self.name}: {'; '.join(lines)}") from None
        return {name: getattr(model, f"p{at}") for at, name in enumerate(self._names)}

    def _validated(self, arguments: dict[str, Any]) -> BaseModel:
        try:
            return self._model.model_validate(arguments)
        except ValidationError as error:
            # Whole arguments only: a text inside a list must not take the place of the list.
            wrong = {str(item["loc"][0]) for item in error.errors() if item["loc"]}
            texts = {name: arguments.get(name) for name in wrong}
            read = {
                name: value
                for name, text in texts.items()
                if isinstance(text, str) and (value := _list_or_object(text)) is not None
            }
            if not read:
                raise
            try:
                return self._model.model_validate({**arguments, **read})
            except ValidationError:
                # Said of what the model wrote, not of what it might have meant.
                raise error from None

    async def call(self, arguments: Mapping[str, Any], sandbox: Sandbox | None) -> ToolResult:
        """Await the function (or call it, if it is not a coroutine function)."""
        extra = {"sandbox": sandbox} if self.needs_sandbox else {}
        value = self._function(**arguments, **extra)
        if inspect.isawaitable(value):
            value = await value
        return value if isinstance(value, ToolResult) else ToolResult(text=as_text(value))


def _list_or_object(text: str) -> Any:
    """The list or object that a text is the JSON of; None if of none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (list, dict)) else None


def as_text(value: Any) -> str:
    """Text of what a function returned, as the model sees it: lists and mappings as JSON."""
    if isinstance(value, Mapping | list | tuple | BaseModel):
        return to_json(value, fallback=str).decode()
    return str(value)


def _fields(tool: str, function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Type and default (`...` for none) of each parameter, `sandbox` included."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # evaluating an annotation runs the author's expressions
        raise ConfigError(
            f"tool {tool!r}: the types of its parameters cannot be read: {error}; import what the "
            "annotations name"
        ) from error
    fields: dict[str, tuple[Any, Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        where = f"tool {tool!r}: parameter {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"{where} takes any number of values, which has no JSON schema")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"{where} is positional-only; arguments are given by name")
        if parameter.name == "sandbox":
            fields[parameter.name] = (Sandbox, ...)
        elif parameter.name not in hints:
            raise ConfigError(f"{where} has no type; annotate it, as in '{parameter.name}: str'")
        else:
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints[parameter.name], default)
    return fields


def _arguments_model(
    tool: str, fields: Mapping[str, tuple[Any, Any]], notes: Mapping[str, str]
) -> tuple[type[BaseModel], dict[str, Any]]:
    """A model that checks arguments, and its JSON schema as a chat template shows it."""
    made: dict[str, Any] = {}
    for at, (name, (hint, default)) in enumerate(fields.items()):
        # Under names of our own: a parameter may be called `json`, `copy` or `_private`.
        made[f"p{at}"] = (hint, Field(default, alias=name, description=notes.get(name)))
        _check_type(tool, name, hint, default)
    model = create_model(f"{tool}_arguments", __config__=_STRICT_NAMES, **made)
    schema = model.model_json_schema()
    defs = schema.pop("$defs", {})
    plain = _plain(schema, defs)
    plain["properties"] = {k: _without_null(v) for k, v in plain.get("properties", {}).items()}
    if "#/$defs/" in repr(plain):
        # A type that holds itself cannot be written out; its own references stay.
        plain["$defs"] = {name: _plain(entry, {}) for name, entry in defs.items()}
    return model, plain


def _without_null(entry: dict[str, Any]) -> dict[str, Any]:
    """A parameter that may be left out, as its type alone: `null` need not be explained too."""
    kinds = entry.get("anyOf", [])
    if len(kinds) != 2 or kinds[1] != {"type": "null"} or entry.get("default", ...) is not None:
        return entry
    rest = {key: value for key, value in entry.items() if key not in ("anyOf", "default")}
    return {**kinds[0], **rest}


def _check_type(tool: str, name: str, hint: Any, default: Any) -> None:
    """Raise for a parameter that no JSON value can be given for, naming it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", PydanticJsonSchemaWarning)
            probe = create_model("probe", __config__=_STRICT_NAMES, value=(hint, default))
            probe.model_json_schema()
    except (PydanticUserError, PydanticJsonSchemaWarning) as error:
        raise ConfigError(
            f"tool {tool!r}: parameter {name!r} of type {getattr(hint, '__name__', hint)} has no "
            f"JSON schema: {str(error).splitlines()[0]}; use str, int, float, bool, list, dict, "
            "Literal, an enum, a dataclass or a pydantic model"
        ) from None


_STRICT_NAMES = ConfigDict(extra="forbid")


def _plain(schema: Any, defs: Mapping[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """A schema without titles, its definitions put where they are used (unless they recurse)."""
    if isinstance(schema, list):
        return [_plain(item, defs, inside) for item in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in defs and name not in inside:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**_plain(defs[name], defs, (*inside, name)), **_plain(rest, defs, inside)}
    return {
        key: {k: _plain(v, defs, inside) for k, v in value.items()}
        if key == "properties"
        else value
        if key in ("default", "const", "enum")
        else _plain(value, defs, inside)
        for key, value in schema.items()
        if key != "title"
    }


_ARGUMENT = re.compile(r"^(\s+)(\*{0,2}\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


def _split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The text before `Args:` and the description of each argument."""
    head, _, tail = doc.partition("\nArgs:")
    notes: dict[str, str] = {}
    current, indent = "", 0
    for line in tail.splitlines():
        match = _ARGUMENT.match(line)
        # What is deeper than the first argument goes on with the one above it.
        if match and (not current or len(match[1]) <= indent):
            current, indent = match[2].lstrip("*"), len(match[1])
            notes[current] = match[3].strip()
        elif line and not line.startswith(" "):
            break
        elif current and line.strip():
            notes[current] = f"{notes[current]} {line.strip()}".strip()
    return head.strip(), notes
