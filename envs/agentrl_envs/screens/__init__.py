"""Environments that show pictures in their turns: a grid world, charts and tables, web pages.

| module | to do |
| --- | --- |
| `agentrl_envs.screens` | walk through a grid (`ScreenTask`, `make_tasks`) |
| `agentrl_envs.screens.reading` | read charts and tables (`ReadingTask`, `make_tasks`) |
| `agentrl_envs.screens.web` | use the pages of MiniWoB++ in Chromium (`WebTask`, `make_tasks`) |
"""

from agentrl_envs.screens.grid import ACTIONS, CELL, LEVELS, MOVES, ScreenTask, make_tasks

__all__ = ["ACTIONS", "CELL", "LEVELS", "MOVES", "ScreenTask", "make_tasks"]
