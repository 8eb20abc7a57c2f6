"""Inputs of the refreshes of a run, and the users of their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.runtime.reward_versions import RewardModelUsers
from agentrl.types import Task

if TYPE_CHECKING:
    from agentrl.data import TrajectoryStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshPlaces:
    """Places of the inputs of a refresh, and the users of its result."""

    run: Path
    """Directory of the run."""
    base: Path
    """Folder that relative paths of the config start from."""
    store: TrajectoryStore
    """Rollouts of the run."""
    tasks: Sequence[Task]
    """Training tasks."""
    users: RewardModelUsers
    """Processes that score."""
