"""Errors of a refresh: one that costs it alone, and one after which the run cannot go on."""

from __future__ import annotations

import traceback

from agentrl.errors import AgentrlError, RunError


class RefreshFailed(AgentrlError):
    """No new reward model came of a refresh; the run goes on with the present one."""


class ModelsParted(RunError):
    """Processes that score may have different versions of a reward model."""


def in_words(error: Exception) -> str:
    """The error as one line; one that is none of ours has its kind and the place it came from."""
    text = str(error)
    if not isinstance(error, AgentrlError):
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        text = f"{type(error).__name__}: {text}{place}"
    return " ".join(text.split())
