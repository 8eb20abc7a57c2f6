"""The `agentrl tasks` commands."""

from agentrl.cli.tasks.command import app

__all__ = ["app"]
