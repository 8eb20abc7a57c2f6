"""The versions of a reward model that is refreshed: who scores with them, and who makes them.

RewardRefresher  --UsedRewardModel-->  RewardModelUsers    every process that scores rollouts
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agentrl.metrics import MetricBag


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedRewardModel:
    """A version of a reward model that is refreshed during a run."""

    name: str
    """Name in `reward.models`."""
    version: int
    """0 the one that the run began with, then one more for each refresh that was accepted."""
    path: str
    """Checkpoint folder, run directory or hub name; absolute where it is a folder of the run."""


class RewardModelUsers(Protocol):
    """All processes that score rollouts with the reward models of a run."""

    async def use_reward_model(self, used: UsedRewardModel) -> None:
        """Score with this version from now on, in every process and in those that come later.

        No rollout may be under way.

        Raises:
            AgentrlError: a process cannot load it; others may use it already.
        """
        ...


class RewardRefresher(Protocol):
    """Keeps a reward model up to date with the policy, for a driver."""

    @property
    def version(self) -> int:
        """Version of the reward model that is in use."""
        ...

    async def before_step(self, step: int, bag: MetricBag) -> None:
        """Bring the reward model to the version that pays this step; call before its rollouts.

        After a step that asks for it the model is refreshed. Of a step whose rollouts are stored,
        or whose refresh is recorded, nothing is made again.

        Args:
            step: from 1.
            bag: takes the metrics of the refresh before this step.

        Raises:
            Interrupted: a signal; the refresh is made again on resume.
            AgentrlError: the reward model that a recorded refresh made cannot be used.
        """
        ...
