"""Puzzles from the generators of reasoning-gym, each with a verifier.

env:
  target: agentrl_envs.reasoning:ReasoningTask
dataset:
  source: agentrl_envs.reasoning:make_tasks
  args: {families: [basic_arithmetic, maze], levels: [0, 1], n: 1000}
"""

from agentrl_envs.reasoning.env import ReasoningTask
from agentrl_envs.reasoning.program import ReasoningProgram
from agentrl_envs.reasoning.tasks import families, make_tasks

__all__ = ["ReasoningProgram", "ReasoningTask", "families", "make_tasks"]
