"""Stand-ins for what an agent file imports from OpenRLHF or verl, for machines without them.

The names are there only while such a file is being loaded, and only if the real package is not
installed, so nothing else can mistake them for it. They hold no behaviour: the agent loop of this
package runs the environment, and an executor only says which environment is meant.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


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

    async def finalize_interaction(self) -> None:
        """Do nothing: there is nothing to end."""


_NAMES = {
    "openrlhf.utils.agent": (AgentInstanceBase, AgentExecutorBase, MultiTurnAgentExecutor),
    "verl.interactions.base": (BaseInteraction,),
}


@contextmanager
def others_importable() -> Iterator[None]:
    """Make `from openrlhf.utils.agent import ...` succeed where OpenRLHF is not installed, and so
    for verl."""
    modules: dict[str, ModuleType] = {}
    for path, classes in _NAMES.items():
        root = path.partition(".")[0]
        if root in sys.modules or importlib.util.find_spec(root) is not None:
            continue
        inner: dict[str, Any] = {cls.__name__: cls for cls in classes}
        name = path
        while name:
            modules[name] = ModuleType(name)
            modules[name].__dict__.update(inner, __path__=[])
            name, _, last = name.rpartition(".")
            inner = {last: modules[f"{name}.{last}"]} if name else {}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
