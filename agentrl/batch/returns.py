"""Rewards of tokens into advantages of tokens: block C, over the trained tokens of one rollout.

The arrays here hold trained tokens only, in order and over all rows of a rollout, so whatever
stands at other positions has no way in. Legend: `_A` trained tokens of one rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """What comes from each place on, discounted (FORMULAS F9): G_k = r_k + gamma^dt G_(k+1).

    Args:
        rewards: [K] in order.
        gamma: discount per unit of time.
        times: [K] when each comes, never falling; None counts the places.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Gae:
    """Advantages and the targets of the critic."""

    advantages_A: FloatArray
    """Before whitening."""
    returns_A: FloatArray
    """Advantages plus values."""


def gae(rewards_A: FloatArray, values_A: FloatArray, *, gamma: float, lam: float) -> Gae:
    """Generalised advantages (https://arxiv.org/abs/1506.02438 eq. 16; FORMULAS F10, C.9).

        delta_t = r_t + gamma V_(t+1) - V_t        A_t = delta_t + gamma lam A_(t+1)

    where t + 1 is the next trained token: V and A are carried across what the environment put
    between, and across rows. After the last token both are 0; a rollout that was cut off by a
    budget is treated as ended there.

    Example:
        >>> gae(np.array([0.0, 1.0]), np.array([0.5, 0.5]), gamma=1.0, lam=0.95).advantages_A
        array([0.475, 0.5  ])
    """
    values = values_A.tolist()
    out = np.zeros(len(values), dtype=np.float64)
    value_next, advantage_next = 0.0, 0.0
    for index in reversed(range(len(values))):
        delta = float(rewards_A[index]) + gamma * value_next - values[index]
        advantage_next = delta + gamma * lam * advantage_next
        value_next = values[index]
        out[index] = advantage_next
    return Gae(advantages_A=out, returns_A=out + values_A)


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
