"""Formats that trajectories can be exported in; `agentrl.inspect.export.files` writes them."""

from __future__ import annotations

import enum


class ExportFormat(enum.StrEnum):
    """A format of an export."""

    JSONL = "jsonl"
    """One object a row, with everything a trajectory file holds, and the labels of reviewers."""
    PARQUET = "parquet"
    """A trajectory file, as the run writes them."""
    HTML = "html"
    """The inspector's page as one file with the rollouts inside; it needs no network."""
    ATIF = "atif"
    """One Agent Trajectory Interchange Format document a rollout, one a line."""
