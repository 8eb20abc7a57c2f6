"""Counts the cost of rollouts that were cancelled in the middle and are never returned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from agentrl.rollout.under_way.in_flight import Activity


class RunningWork(Protocol):
    """An attempt at a rollout, under way or over."""

    @property
    def sampled_tokens(self) -> int:
        """Tokens the policy has sampled in it."""
        ...

    @property
    def elapsed_s(self) -> float:
        """Wall time since it began, or that it took."""
        ...


class Effort:
    """One rollout, all its attempts together."""

    def __init__(self, activity: Activity) -> None:
        self.activity = activity
        """Turn of the rollout, and the party it waits for."""
        self._attempts: list[RunningWork] = []

    def begin(self, attempt: RunningWork) -> None:
        """Count the start of another attempt."""
        self._attempts.append(attempt)

    @property
    def tokens(self) -> int:
        """Tokens sampled so far."""
        return sum(attempt.sampled_tokens for attempt in self._attempts)

    @property
    def seconds(self) -> float:
        """Wall time of the attempts so far."""
        return sum(attempt.elapsed_s for attempt in self._attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelledWork:
    """Cost of cancelled groups; siblings that had ended are lost with the group."""

    tokens: int = 0
    """Sampled, in turns that had come back."""
    seconds: float = 0.0
    """Wall time of rollouts, each for itself."""

    def plus(self, efforts: Iterable[Effort]) -> CancelledWork:
        """With the rollouts of another group."""
        efforts = list(efforts)
        return CancelledWork(
            tokens=self.tokens + sum(effort.tokens for effort in efforts),
            seconds=self.seconds + sum(effort.seconds for effort in efforts),
        )
