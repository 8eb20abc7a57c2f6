"""The command `agentrl coldstart`."""

from agentrl.cli.coldstart.command import command

__all__ = ["command"]
