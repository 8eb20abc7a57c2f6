"""Recompute a recorded step and compare it with what was recorded."""

from agentrl.cli.replay.command import command

__all__ = ["command"]
