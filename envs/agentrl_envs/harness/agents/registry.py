"""The agents that are known by name; an agent of a user's own is named by import string."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentrl.errors import ConfigError, choices
from agentrl.plugins.imports import resolve
from agentrl_envs.harness.agents.claude_code import CLAUDE_CODE
from agentrl_envs.harness.agents.codex import CODEX
from agentrl_envs.harness.agents.mini_swe_agent import MINI_SWE_AGENT
from agentrl_envs.harness.agents.opencode import OPENCODE
from agentrl_envs.harness.agents.pi import PI
from agentrl_envs.harness.agents.qwen_code import QWEN_CODE
from agentrl_envs.harness.agents.record import HarnessAgent

_ALL = (CLAUDE_CODE, CODEX, MINI_SWE_AGENT, OPENCODE, PI, QWEN_CODE)
_AGENTS = {agent.name: agent for agent in _ALL}


def agents() -> Mapping[str, HarnessAgent]:
    """The agents that this package knows, by name."""
    return dict(_AGENTS)


def find_agent(target: str, *, base: Path | None = None) -> HarnessAgent:
    """An agent by its name, or by the import string of a `HarnessAgent`.

    Args:
        target: as in `pi` or `my_agents.py:my_agent`.
        base: folder that relative file paths start from; default the working directory.

    Raises:
        ConfigError: there is none; says which there are.
    """
    if ":" not in target:
        if target not in _AGENTS:
            raise ConfigError(
                f"agent {target!r} is not known: {choices(target, _AGENTS)}; or name a "
                "HarnessAgent of your own as 'my_agents.py:my_agent'"
            )
        return _AGENTS[target]
    found = resolve(target, base=base)
    if not isinstance(found, HarnessAgent):
        raise ConfigError(f"agent {target!r}: expected a HarnessAgent, got {type(found).__name__}")
    return found
