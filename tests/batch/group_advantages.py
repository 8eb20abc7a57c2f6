"""Advantages of a group of one-turn rollouts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.batch.advantages import turn_advantages
from agentrl.batch.records import FloatArray


def group_advantages(
    rewards: Sequence[float | None], *, estimator: str, ddof: int, eps: float
) -> FloatArray:
    """One number per rollout of a group (FORMULAS F8); 0 for None, outside the baseline."""
    turns = [None if reward is None else (float(reward),) for reward in rewards]
    found = turn_advantages(turns, estimator=estimator, gamma=1.0, ddof=ddof, eps=eps)
    return np.array([0.0 if a is None else a[0] for a in found], dtype=np.float64)
