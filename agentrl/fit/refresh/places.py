"""Inputs of a refresh on the disk of its run, and the processes that take its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.fit.reward_models.versions import RewardModelUsers
from agentrl.types import Task

if TYPE_CHECKING:
    from agentrl.data import TrajectoryStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshPlaces:
    """Places of the inputs of a refresh, and the users of its result."""

    run: Path
    """Directory of the run."""
    store: TrajectoryStore
    """Rollouts of the run."""
    tasks: Sequence[Task]
    """Training tasks."""
    users: RewardModelUsers
    """Processes that score."""
