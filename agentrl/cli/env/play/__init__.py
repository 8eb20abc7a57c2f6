"""The command `agentrl env play`."""

from agentrl.cli.env.play.command import play

__all__ = ["play"]
