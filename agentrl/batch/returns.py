"""Rewards of tokens into advantages of tokens: block C, over the trained tokens of one rollout.

The arrays here hold trained tokens only, in order and over all rows of a rollout, so whatever
stands at other positions has no way in. Legend: `_A` trained tokens of one rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from agentrl.batch.records import FloatArray, IntArray
from agentrl.errors import DataError, choices

KlEstimator = Literal["k1", "k2", "k3", "k3+"]

MAX_LOG_RATIO = 20.0
"""Log differences are clamped to +- this before exp (FORMULAS C.6)."""


def rewards_to_go(
    rewards: Sequence[float] | FloatArray,
    *,
    gamma: float,
    times: Sequence[int] | IntArray | None = None,
) -> FloatArray:
    """Discounted sum of rewards from each position on (FORMULAS F9): G_k = r_k + gamma^dt G_(k+1).

    Args:
        rewards: [K] in order.
        gamma: discount per unit of time.
        times: [K] when each comes, never falling; None counts the positions.

    Example:
        >>> rewards_to_go([0.0, 1.0, 4.0], gamma=0.5)
        array([1.5, 3. , 4. ])
    """
    count = len(rewards)
    gaps = [1] * count if times is None else [*np.diff(np.asarray(times)).tolist(), 0]
    out = np.zeros(count, dtype=np.float64)
    total = 0.0
    for index in reversed(range(count)):
        total = float(rewards[index]) + gamma ** gaps[index] * total
        out[index] = total
    return out


def token_kl(difference_A: FloatArray, estimator: KlEstimator) -> FloatArray:
    """Penalty of each token for leaving the reference (FORMULAS F11, C.6).

        d = lp - lp_ref       k1 = d       k2 = d^2 / 2       k3 = exp(-d) - 1 + d

    http://joschu.net/blog/kl-approx.html. d is clamped to +-20 inside k3 and nowhere else. `k3+`
    differs from k3 in its gradient as a loss only.

    Raises:
        DataError: an unknown estimator.
    """
    if estimator == "k1":
        return difference_A.copy()
    if estimator == "k2":
        return 0.5 * difference_A**2
    if estimator in ("k3", "k3+"):
        clamped = np.clip(difference_A, -MAX_LOG_RATIO, MAX_LOG_RATIO)
        return np.expm1(-clamped) + clamped
    raise DataError(f"kl_estimator: {choices(str(estimator), get_args(KlEstimator))}")
