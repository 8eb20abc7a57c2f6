"""Mean and spread of a group's rewards.

Sums are `math.fsum`, which does not depend on the order: permuted siblings have the same advantages
to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.errors import DataError

_ROUNDING = 1e-13
"""Of sums over the turns of a rollout, relative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Mean and spread of one group's rewards.

    Example:
        >>> group_statistics([0.0, 1.0], ddof=0)
        GroupStatistics(mean=0.5, std=0.5, size=2)
    """

    mean: float
    """Mean reward of the rollouts in the baseline."""
    std: float
    """Standard deviation; 0 for a single rollout and when all rewards are equal."""
    size: int
    """Rollouts in the baseline."""


def group_statistics(rewards: Sequence[float], *, ddof: int) -> GroupStatistics:
    """Mean and standard deviation of one group.

    Equal rewards have a spread of exactly 0 here, not of one rounding error, so that such a group
    is known to carry no gradient.

    Raises:
        DataError: no reward at all, or one that is not finite.
    """
    if not rewards:
        raise DataError("group_statistics: no reward in the baseline of the group")
    bad = [r for r in rewards if not math.isfinite(r)]
    if bad:
        raise DataError(
            f"group_statistics: rewards must be finite, got {bad} among {list(rewards)}"
        )
    size = len(rewards)
    if min(rewards) == max(rewards):
        return GroupStatistics(mean=float(rewards[0]), std=0.0, size=size)
    mean = math.fsum(rewards) / size
    squares = math.fsum((r - mean) ** 2 for r in rewards)
    return GroupStatistics(mean=mean, std=math.sqrt(squares / (size - ddof)), size=size)


def differ_by_rounding(rewards: Sequence[Sequence[float]], totals: Sequence[float]) -> bool:
    """Return true if whole returns differ only by the rounding of their sums over turns.

    Turns may differ by much more than that: divided by such a deviation they would have advantages
    of 1 / eps.
    """
    largest = max(math.fsum(map(abs, turns)) for turns in rewards)
    return max(totals) - min(totals) <= _ROUNDING * largest
