"""The `agentrl chat` commands: a model's chat template, as a run reads it."""

from agentrl.cli.chat.command import app

__all__ = ["app"]
