"""What an agent file imports from OpenRLHF, for machines without OpenRLHF.

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
    """Base of environments."""

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> Any:
        """The first observation is the prompt."""
        return states


class AgentExecutorBase:
    """Base of executors; remembers the environment class it is given."""

    def __init__(self, agent_instance_cls: type | None = None, *args: Any, **kwargs: Any) -> None:
        self.agent_instance_cls = agent_instance_cls


class MultiTurnAgentExecutor(AgentExecutorBase):
    """The executor that agent files subclass."""


@contextmanager
def openrlhf_importable() -> Iterator[None]:
    """Let `from openrlhf.utils.agent import ...` succeed where OpenRLHF is not installed."""
    if "openrlhf" in sys.modules or importlib.util.find_spec("openrlhf") is not None:
        yield
        return
    root, utils = ModuleType("openrlhf"), ModuleType("openrlhf.utils")
    agent = ModuleType("openrlhf.utils.agent")
    for cls in (AgentInstanceBase, AgentExecutorBase, MultiTurnAgentExecutor):
        setattr(agent, cls.__name__, cls)
    root.__dict__.update(utils=utils, __path__=[])
    utils.__dict__.update(agent=agent, __path__=[])
    modules = {module.__name__: module for module in (root, utils, agent)}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
