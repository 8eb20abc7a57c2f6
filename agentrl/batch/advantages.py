"""What a rollout, or a turn of it, did better than its siblings.

Pure functions over one group's rewards. Which rollouts have a reward that can be trusted is decided
before, by `TERMINATION_RULES`; which token gets the result is decided after, by `credit`.

Sums are `math.fsum`, which does not depend on the order: permuted siblings have the same advantages
to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from agentrl.batch.records import FloatArray
from agentrl.batch.returns import rewards_to_go
from agentrl.config.presets import Estimator
from agentrl.errors import DataError, choices

GROUP_BASELINES = frozenset({"rloo", "reinforce_baseline", "dr_grpo", "group_norm"})
"""Estimators that compare a rollout with its siblings."""
_ROUNDING = 1e-13
"""Of sums over the turns of a rollout, relative."""


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
    """One number per rollout of a group: block A (FORMULAS F8).

        reinforce, gae      R                            A1
        reinforce_baseline  R - mean                     A2
        dr_grpo             R - mean                     A2, https://arxiv.org/abs/2503.20783
        rloo                R - mean of the others       A3, https://arxiv.org/abs/2402.14740
        group_norm          (R - mean) / (std + eps)     A4, https://arxiv.org/abs/2402.03300 sec. 4

    Args:
        rewards: [G] one per rollout; None is outside the baseline and gets 0. Groups may have any
            size; with a baseline, a single rollout has no sibling to compare with and gets 0.
        estimator: which of them.
        ddof: delta degrees of freedom of the standard deviation.
        eps: added to the standard deviation.

    Example:
        >>> group_advantages([1.0, 0.0, None], estimator="dr_grpo", ddof=1, eps=1e-6)
        array([ 0.5, -0.5,  0. ])

    Raises:
        DataError: a reward that is not finite, or an unknown estimator.
    """
    turns = [None if reward is None else (float(reward),) for reward in rewards]
    found = turn_advantages(turns, estimator=estimator, gamma=1.0, ddof=ddof, eps=eps)
    return np.array([0.0 if a is None else a[0] for a in found], dtype=np.float64)


def turn_advantages(
    rewards: Sequence[Sequence[float] | None],
    *,
    estimator: Estimator,
    gamma: float,
    ddof: int,
    eps: float,
) -> list[FloatArray | None]:
    """One number per turn: return-to-go against the group's whole returns (FORMULAS C.14, F27).

    With G_k = r_k + gamma r_(k+1) + ... of one rollout, the formulas of `group_advantages` hold
    with R replaced by G_k on the left of the minus and by G_1 in every statistic, of all siblings
    (`rloo`: of the others). A baseline over those siblings that reached turn k would depend on
    the decision to stop, and punish every further turn by the mean of the rewards on the way
    (https://github.com/verl-project/verl/issues/7244).

    `group_norm` divides by the deviation of whole returns; where these are all equal, but for the
    rounding of their sums, there is none, and the group gets 0. The others keep what the turns of
    such a group differ by.

    Args:
        rewards: [G][K] by rollout and turn; None is outside the baseline.
        estimator: see `group_advantages`.
        gamma: discount per turn.
        ddof: delta degrees of freedom of the standard deviation.
        eps: added to the standard deviation.

    Example:
        The second turn of the first rollout is worth 1 and not its whole 3; both are compared
        with the mean of whole returns, 2.

        >>> turn_advantages([[2.0, 1.0], [1.0]], estimator="dr_grpo", gamma=1.0, ddof=1, eps=1e-6)
        [array([ 1., -1.]), array([-1.])]

    Raises:
        DataError: a reward that is not finite, or an unknown estimator.
    """
    if estimator not in get_args(Estimator):
        raise DataError(f"advantage_estimator: {choices(str(estimator), get_args(Estimator))}")
    returns = [None if r is None else rewards_to_go(r, gamma=gamma) for r in rewards]
    totals = [float(g[0]) for g in returns if g is not None]
    if not totals:
        return [None] * len(returns)
    stats = group_statistics(totals, ddof=ddof)
    if estimator not in GROUP_BASELINES:
        return returns
    scale = 1.0
    alike = stats.std == 0.0 or _a_rounding_apart(rewards, totals)
    if stats.size == 1 or (estimator == "group_norm" and alike):
        scale = 0.0
    elif estimator == "group_norm":
        scale = 1.0 / (stats.std + eps)
    whole = math.fsum(totals)
    out: list[FloatArray | None] = []
    for found in returns:
        if found is None:
            out.append(None)
            continue
        baseline = stats.mean
        if estimator == "rloo" and stats.std != 0.0:
            baseline = (whole - float(found[0])) / (stats.size - 1)
        out.append((found - baseline) * scale if scale else np.zeros_like(found))
    return out


def _a_rounding_apart(rewards: Sequence[Sequence[float] | None], totals: Sequence[float]) -> bool:
    """Whether whole returns differ only because their turns were added up in floating point.

    Turns may differ by much more than that: divided by such a deviation they would have advantages
    of 1 / eps.
    """
    largest = max(math.fsum(map(abs, r)) for r in rewards if r is not None)
    return max(totals) - min(totals) <= _ROUNDING * largest
