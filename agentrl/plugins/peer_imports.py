"""Stand-ins for what a user's file imports from OpenRLHF or verl, for machines without them.

The names are there only while such a file is being loaded, and only where the real package is not
installed or lacks them, so nothing else can mistake them for it. They hold next to no behaviour:
the agent loop of this package runs the environment, and an executor only says which one is meant.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4


class AgentInstanceBase:
    """Base class of environments, as in OpenRLHF."""

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> Any:
        """The first observation is the prompt."""
        return states


class AgentExecutorBase:
    """Base of executors; remembers the environment class it is given."""

    def __init__(self, agent_instance_cls: type | None = None, *args: Any, **kwargs: Any) -> None:
        self.agent_instance_cls = agent_instance_cls


class MultiTurnAgentExecutor(AgentExecutorBase):
    """The executor that agent files subclass."""


class BaseInteraction:
    """Base of interactions; keeps its config."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.name: str = config.get("name", "interaction_agent")

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        """Give the id of a conversation, a new one where none is given."""
        return instance_id or uuid4().hex

    async def finalize_interaction(self) -> None:
        """Do nothing: there is nothing to end."""


def init_logger(name: str) -> logging.Logger:
    """The logger of a module, as OpenRLHF's helper gives it."""
    return logging.getLogger(name)


_NAMES: Mapping[str, tuple[Any, ...]] = {
    "openrlhf.utils.agent": (AgentInstanceBase, AgentExecutorBase, MultiTurnAgentExecutor),
    "openrlhf.utils.logging_utils": (init_logger,),
    "verl.interactions.base": (BaseInteraction,),
}


class _StandIn(ModuleType):
    """A module of another trainer that is not installed."""


@contextmanager
def others_importable() -> Iterator[None]:
    """Make `from openrlhf.utils.agent import ...` succeed where there is no such module, and so
    for verl, also where a release is installed that has no interactions."""
    made: list[str] = []
    for path, members in _NAMES.items():
        inner: dict[str, Any] = {member.__name__: member for member in members}
        while path and not _is_there(path):
            if path not in sys.modules:
                sys.modules[path] = _StandIn(path)
                made.append(path)
            vars(sys.modules[path]).update(inner, __path__=[])
            path, _, last = path.rpartition(".")
            inner = {last: sys.modules[f"{path}.{last}".lstrip(".")]}
    try:
        yield
    finally:
        for name in made:
            sys.modules.pop(name, None)


def _is_there(path: str) -> bool:
    """True if a real module can be found; without an import, which of trainers takes seconds."""
    if (known := sys.modules.get(path)) is not None:
        return not isinstance(known, _StandIn)
    parent, dot, name = path.rpartition(".")
    if not dot:
        return find_spec(path) is not None
    return any(
        (place / f"{name}.py").is_file() or (place / name).is_dir() for place in _places(parent)
    )


def _places(package: str) -> list[Path]:
    """Folders in which the modules of a package would lie."""
    if (known := sys.modules.get(package)) is not None:
        return [Path(place) for place in getattr(known, "__path__", ())]
    parent, dot, name = package.rpartition(".")
    if dot:
        return [place / name for place in _places(parent)]
    spec = find_spec(package)
    return [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
