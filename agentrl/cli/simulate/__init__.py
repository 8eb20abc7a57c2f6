"""The `agentrl simulate` commands."""

from agentrl.cli.simulate.command import app

__all__ = ["app"]
