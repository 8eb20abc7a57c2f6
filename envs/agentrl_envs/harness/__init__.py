"""Agents as programs: an unmodified agent works on a task, and its model is the policy."""

from agentrl_envs.harness.env import HarnessTask

__all__ = ["HarnessTask"]
