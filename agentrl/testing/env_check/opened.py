"""Opens what a run file names of an environment: its class, its tools, its sandboxes."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config.schema import EnvSection
from agentrl.env import AgentInstance, ProgramEnv
from agentrl.rollout.adapters.adapt import load_env_class
from agentrl.runtime.assembly.parts import open_sandboxes
from agentrl.runtime.assembly.sandbox_port import require_port
from agentrl.runtime.assembly.tools import open_tools
from agentrl.sandbox import SandboxBackend
from agentrl.tool import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedEnv:
    """Everything that `check_env` takes of an environment."""

    make_env: Callable[[], AgentInstance]
    """Makes a fresh instance."""
    tools: Sequence[Tool]
    """Tools of the config."""
    backend: SandboxBackend | None
    """Makes sandboxes; None for none."""


@asynccontextmanager
async def opened_env(section: EnvSection, sandbox: Any, *, base: Path) -> AsyncIterator[OpenedEnv]:
    """Open an environment, and close it when the block is left.

    Args:
        section: class, arguments and tools.
        sandbox: a section of `agentrl.config.sandboxes`, or None.
        base: folder that relative paths start from.
    """
    make = load_env_class(section.target, base=base)
    backend = await open_sandboxes(sandbox, base=base) if sandbox is not None else None
    try:
        if backend is not None and inspect.isclass(make) and issubclass(make, ProgramEnv):
            await require_port(backend)
        async with open_tools(section, base=base) as tools:
            yield OpenedEnv(make_env=lambda: make(**section.args), tools=tools, backend=backend)
    finally:
        if backend is not None:
            await backend.close()
