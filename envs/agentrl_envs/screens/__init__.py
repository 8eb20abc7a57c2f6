"""Environments that show pictures in their turns."""

from agentrl_envs.screens.grid import ACTIONS, CELL, LEVELS, MOVES, ScreenTask, make_tasks

__all__ = ["ACTIONS", "CELL", "LEVELS", "MOVES", "ScreenTask", "make_tasks"]
