"""The `agentrl traj` commands."""

from agentrl.cli.traj.command import app

__all__ = ["app"]
