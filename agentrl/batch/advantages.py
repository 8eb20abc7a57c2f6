"""Advantages from the rewards of a group: what a rollout did better than its siblings.

Pure functions over one group's rewards, one number per rollout. Which rollouts have a reward that
can be trusted is decided before, by `TERMINATION_RULES`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from agentrl.batch.records import FloatArray
from agentrl.config.algorithm import Estimator
from agentrl.errors import DataError, choices


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Mean and spread of one group's rewards."""

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


def group_advantages(
    rewards: Sequence[float | None], *, estimator: Estimator, ddof: int, eps: float
) -> FloatArray:
    """One advantage per rollout of a group (FORMULAS F8: A2 for `dr_grpo`, A4 for `group_norm`).

        dr_grpo     R - mean                  https://arxiv.org/abs/2503.20783
        group_norm  (R - mean) / (std + eps)  https://arxiv.org/abs/2402.03300, equation after (3)

    Args:
        rewards: [G] one per rollout; None is outside the baseline and gets advantage 0. Groups may
            have any size; a single rollout has no sibling to compare with and gets 0.
        estimator: which of the two.
        ddof: delta degrees of freedom of the standard deviation.
        eps: added to the standard deviation.

    Example:
        >>> group_advantages([1.0, 0.0, None], estimator="dr_grpo", ddof=1, eps=1e-6)
        array([ 0.5, -0.5,  0. ])

    Raises:
        DataError: a reward that is not finite, or an unknown estimator.
    """
    if estimator not in ("dr_grpo", "group_norm"):
        raise DataError(f"advantage_estimator: {choices(str(estimator), get_args(Estimator))}")
    out = np.zeros(len(rewards), dtype=np.float64)
    scored = [(index, float(r)) for index, r in enumerate(rewards) if r is not None]
    if not scored:
        return out
    stats = group_statistics([r for _, r in scored], ddof=ddof)
    if stats.std == 0.0:
        return out
    scale = 1.0 if estimator == "dr_grpo" else 1.0 / (stats.std + eps)
    for index, reward in scored:
        out[index] = (reward - stats.mean) * scale
    return out
