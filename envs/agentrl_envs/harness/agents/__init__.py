"""Agents that can be trained as they are: what to install, how to start them, how they end."""

from agentrl_envs.harness.agents.install import install, installed
from agentrl_envs.harness.agents.record import AgentValues, HarnessAgent
from agentrl_envs.harness.agents.registry import agents, find_agent

__all__ = ["AgentValues", "HarnessAgent", "agents", "find_agent", "install", "installed"]
