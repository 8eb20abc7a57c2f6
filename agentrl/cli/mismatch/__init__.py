"""Trace differences of log-probabilities between sampler and trainer to patterns and causes."""

from agentrl.cli.mismatch.command import command

__all__ = ["command"]
