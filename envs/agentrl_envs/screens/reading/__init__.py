"""Charts and tables in pictures, with questions.

env:
  target: agentrl_envs.screens.reading:ReadingTask
dataset:
  source: agentrl_envs.screens.reading:make_tasks
  args: {levels: [1, 2, 3]}
"""

from agentrl_envs.screens.reading.env import ReadingTask, make_tasks
from agentrl_envs.screens.reading.sheets import LEVELS

__all__ = ["LEVELS", "ReadingTask", "make_tasks"]
