"""From `env.tools` to tools that are open: resolved from their import strings, made, connected.

Two steps, because a run file is checked before anything is started: `make_tools` resolves and
makes, `open_tools` also opens the sets among them (a connection to a server of tools) for as long
as a process rolls out.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from agentrl.config import resolve
from agentrl.config.schema import EnvSection, ToolSection
from agentrl.errors import AgentrlError, ConfigError
from agentrl.tool import Tool, ToolSet, as_tool

logger = logging.getLogger(__name__)


def make_tools(section: EnvSection, *, base: Path) -> tuple[Tool | ToolSet, ...]:
    """The tools named in the config; sets among them are not opened.

    Raises:
        ConfigError: an entry does not give tools, or two share a name.
    """
    made: list[Tool | ToolSet] = []
    for at, entry in enumerate(section.tools):
        made.extend(_made(entry, f"env.tools.{at}", base))
    check_names([tool for tool in made if isinstance(tool, Tool)])
    return tuple(made)


@contextlib.asynccontextmanager
async def open_tools(section: EnvSection, *, base: Path) -> AsyncIterator[tuple[Tool, ...]]:
    """The tools of the config, with the sets among them opened; closes those again.

    Raises:
        ConfigError: as `make_tools`, or a set cannot be opened.
    """
    made = make_tools(section, base=base)
    tools: list[Tool] = []
    async with contextlib.AsyncExitStack() as stack:
        for entry in made:
            if isinstance(entry, Tool):
                tools.append(entry)
                continue
            stack.push_async_callback(_close, entry)
            opened = await entry.open()
            wrong = [tool for tool in opened if not isinstance(tool, Tool)]
            if wrong:
                raise ConfigError(
                    f"env.tools: {type(entry).__name__}.open gave a {type(wrong[0]).__name__}, "
                    "expected Tools"
                )
            tools.extend(opened)
        check_names(tools)
        yield tuple(tools)


def check_names(tools: Sequence[Tool]) -> None:
    """Raise `ConfigError` if two tools share a name."""
    names = [tool.name for tool in tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"env.tools: two tools are called {', '.join(twice)}; rename one")


def _made(entry: str | ToolSection, where: str, base: Path) -> Sequence[Tool | ToolSet]:
    """What one entry of `env.tools` stands for."""
    target = entry if isinstance(entry, str) else entry.target
    value = resolve(target, base=base)
    if isinstance(entry, ToolSection):
        if not callable(value):
            raise ConfigError(
                f"{where}: {target!r} names a {type(value).__name__}, and 'args' can only be given "
                "to a class or function; write the import string alone"
            )
        value = _called(value, entry, where)
    elif isinstance(value, type) and issubclass(value, Tool | ToolSet):
        value = _called(value, ToolSection(target=target), where)
    if isinstance(value, Tool | ToolSet):
        return (value,)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_as_tool(item, where, target) for item in value]
    return (_as_tool(value, where, target),)


def _called(make: Any, entry: ToolSection, where: str) -> Any:
    try:
        return make(**entry.args)
    except AgentrlError:
        raise
    except Exception as error:  # the constructor of a user's class may raise anything
        raise ConfigError(
            f"{where}: {entry.target!r} cannot be made with args {entry.args}: "
            f"{type(error).__name__}: {error}; its signature is {signature_of(make)}"
        ) from error


def _as_tool(value: Any, where: str, target: str) -> Tool | ToolSet:
    if isinstance(value, Tool | ToolSet):
        return value
    if inspect.isfunction(value) or inspect.ismethod(value):
        return as_tool(value)
    raise ConfigError(
        f"{where}: {target!r} gives a {type(value).__name__}; expected a Tool, a ToolSet, a "
        "function with a docstring, or with 'args' a class or function that makes some"
    )


async def _close(tools: ToolSet) -> None:
    try:
        await tools.close()
    except Exception:  # recording boundary: the run is over for it, and others must close too
        logger.warning("env.tools: closing %s failed", type(tools).__name__, exc_info=True)


def signature_of(target: Any) -> str:
    """Name and arguments of a callable, for messages."""
    try:
        return f"{getattr(target, '__name__', target)}{inspect.signature(target)}"
    except (TypeError, ValueError):
        return "unknown"
