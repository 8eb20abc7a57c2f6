"""Errors of a refresh: one that costs it alone, and one after which the run cannot go on."""

from __future__ import annotations

from agentrl.errors import AgentrlError, RunError


class RefreshFailed(AgentrlError):
    """No new reward model came of a refresh; the run goes on with the present one."""


class ModelsParted(RunError):
    """Processes that score may have different versions of a reward model."""
