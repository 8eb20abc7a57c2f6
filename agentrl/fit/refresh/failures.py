"""Errors of a refresh: one that costs it alone, and one after which the run cannot go on."""

from __future__ import annotations

from agentrl.errors import AgentrlError, RunError


class RefreshFailed(AgentrlError):
    """No new reward model came of a refresh; the run goes on with the present one."""


class ModelsParted(RunError):
    """Processes that score may have different versions of a reward model."""


def in_words(error: Exception) -> str:
    """The error as a text, which begins with its kind where it is none of ours."""
    return str(error) if isinstance(error, AgentrlError) else f"{type(error).__name__}: {error}"
