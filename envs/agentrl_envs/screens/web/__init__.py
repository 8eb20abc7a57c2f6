"""The pages of MiniWoB++, used in a real Chromium.

env:
  target: agentrl_envs.screens.web:WebTask
dataset:
  source: agentrl_envs.screens.web:make_tasks
  args: {levels: [1, 2]}
"""

from agentrl_envs.screens.web.env import WebTask
from agentrl_envs.screens.web.tasks import LEVELS, make_tasks

__all__ = ["LEVELS", "WebTask", "make_tasks"]
