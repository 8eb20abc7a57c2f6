"""The contract of a tool: a name, a JSON schema and one coroutine.

A `ToolError` raised by a tool is shown to the model; any other exception is infrastructure and
ends the rollout. A tool receives its sandbox; it never makes one.
"""

from __future__ import annotations

import inspect
import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import PydanticJsonSchemaWarning
from pydantic_core import to_json

from agentrl.errors import ConfigError, ToolError
from agentrl.plugins.docstrings import parts_of_docstring
from agentrl.plugins.own_threads import OwnThread
from agentrl.sandbox import Sandbox
from agentrl.types import Task, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The rollout that a call belongs to; a function that is a tool asks for it by its type.

    Example:
        >>> async def note(text: str, rollout: ToolContext) -> str:
        ...     '''Write a note.'''
        ...     notes = rollout.state.setdefault("notes", [])
        ...     notes.append(text)
        ...     return f"{len(notes)} notes"
        >>> list(FunctionTool(note).parameters["properties"])
        ['text']
    """

    task: Task | None = None
    """What the rollout is to do; None outside of a rollout."""
    seed: int = 0
    """The same for the same task and sample index in every run with the same `run.seed`."""
    rollout_id: str = ""
    """Id of the rollout, for logs."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    """Whatever the tools of this rollout keep; its environment has the same as `context.state`."""
    _threads: list[OwnThread] = field(default_factory=lambda: [OwnThread()], repr=False)

    async def run(self, function: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call a function that is no coroutine, in the thread of this rollout.

        Calls of a rollout share it, one after the other, so that what a tool opens belongs to it. A
        call that hangs is left behind and ended, and those after it get a new thread.
        """
        if self._threads[-1].hangs:
            self._threads.append(OwnThread())
        return await self._threads[-1].call(function, **arguments)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this the rollout of the calls in the block."""
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)

    def close(self) -> None:
        """End the threads behind their last calls. Idempotent."""
        for thread in self._threads:
            thread.close()


_current: ContextVar[ToolContext | None] = ContextVar("_current", default=None)


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

    A parameter named `sandbox` receives the sandbox of the rollout, one of the type `ToolContext`
    the rollout itself; both are hidden from the model. A method is called on its object. Docstrings
    of Google, NumPy and Sphinx style describe the parameters. A function that is not a coroutine
    function runs in a thread of the rollout: it may wait, and is left behind when its time is over.

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
        found = _signature(self.name, function)
        self.description, self.parameters = found.description, found.parameters
        self.needs_sandbox = found.takes_sandbox
        unset = math.inf if self.needs_sandbox else Tool.timeout_s
        self.timeout_s = unset if timeout_s is None else timeout_s
        self._signature = found

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
        return {name: getattr(model, f"p{at}") for at, name in enumerate(self._signature.names)}

    def _validated(self, arguments: dict[str, Any]) -> BaseModel:
        try:
            return self._signature.model.model_validate(arguments)
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
                return self._signature.model.model_validate({**arguments, **read})
            except ValidationError:
                # Said of what the model wrote, not of what it might have meant.
                raise error from None

    async def call(self, arguments: Mapping[str, Any], sandbox: Sandbox | None) -> ToolResult:
        """Await the function, or call it in the thread of the rollout."""
        rollout = _current.get() or ToolContext()
        given = dict(arguments)
        if self._signature.takes_sandbox:
            given["sandbox"] = sandbox
        if self._signature.rollout:
            given[self._signature.rollout] = rollout
        if inspect.iscoroutinefunction(self._function):
            value = await self._function(**given)
        else:
            value = await rollout.run(self._function, **given)
        return value if isinstance(value, ToolResult) else ToolResult(text=as_text(value))


def as_tool(value: Any) -> Tool:
    """A tool as it is, and a function or method as one.

    Raises:
        ConfigError: it is neither, or as `FunctionTool`.
    """
    if isinstance(value, Tool):
        return value
    if inspect.isfunction(value) or inspect.ismethod(value):
        return FunctionTool(value)
    raise ConfigError(
        f"a tool is {ascii(value)[:80]} ({type(value).__name__}); expected a Tool, or a function "
        "or method with a docstring"
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signature:
    """A function as a model sees it."""

    description: str
    parameters: Mapping[str, Any]
    model: type[BaseModel]
    """Checks arguments."""
    names: tuple[str, ...]
    """Parameters that the model gives, in order."""
    takes_sandbox: bool
    rollout: str
    """Parameter that takes the `ToolContext`; empty for none."""


_known: WeakKeyDictionary[Any, _Signature] = WeakKeyDictionary()
"""By function: a method is made a tool again in each rollout, and describing it takes 1 ms."""


def _signature(tool: str, function: Callable[..., Any]) -> _Signature:
    """Describe a function; one that is called by its own name is described once."""
    plain = getattr(function, "__func__", function)
    own = inspect.isfunction(plain) and plain.__name__ == tool
    if own and plain in _known:
        return _known[plain]
    doc = inspect.getdoc(function) or ""
    if not doc:
        raise ConfigError(
            f"tool {tool!r} has no docstring; the model is told what it says, so write one "
            "sentence and an 'Args:' section"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"tool {tool!r} yields, and the model is given one result; return it instead, as a "
            "text or a list"
        )
    description, notes = parts_of_docstring(doc)
    fields = _fields(tool, function)
    takes_sandbox = fields.pop("sandbox", None) is not None
    rollouts = [name for name, (hint, _) in fields.items() if hint is ToolContext]
    if len(rollouts) > 1:
        raise ConfigError(f"tool {tool!r}: {rollouts} are of the type ToolContext; keep one")
    for name in rollouts:
        del fields[name]
    model, parameters = _arguments_model(tool, fields, notes)
    found = _Signature(
        description=description,
        parameters=parameters,
        model=model,
        names=tuple(fields),
        takes_sandbox=takes_sandbox,
        rollout=next(iter(rollouts), ""),
    )
    if own:
        _known[plain] = found
    return found


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
