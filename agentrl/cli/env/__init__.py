"""The `agentrl env` commands."""

from agentrl.cli.env.command import app

__all__ = ["app"]
