"""The `agentrl sandbox` commands."""

from agentrl.cli.sandbox.command import app

__all__ = ["app"]
