"""Scores with honest intervals.

The unit is the task: rollouts of one task are alike, so they are averaged first and the interval
is taken over tasks (clustered standard errors, https://arxiv.org/abs/2411.00640 section 2.2, here
with Student's t instead of the normal quantile because a held-out set may hold eight tasks).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from agentrl.health.curves import t_quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over tasks with its 95 % interval."""

    mean: float
    """NaN when there was nothing to average."""
    low: float
    """Lower end; NaN when fewer than two tasks leave it unknown."""
    high: float
    """Upper end; NaN when fewer than two tasks leave it unknown."""
    n: int
    """Tasks."""

    @property
    def half(self) -> float:
        """Half the width; NaN when unknown."""
        return (self.high - self.low) / 2

    def text(self, *, signed: bool = False) -> str:
        """As in `0.41 [0.33, 0.49]`."""
        if math.isnan(self.mean):
            return "n/a"
        sign = "+" if signed else ""
        if math.isnan(self.low):
            return f"{self.mean:{sign}.2f} [?, ?]"
        return f"{self.mean:{sign}.2f} [{self.low:{sign}.2f}, {self.high:{sign}.2f}]"


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean of one value per task with a t interval over the tasks.

    When every value is 0, or every value is 1, the spread says nothing; the far end is then the
    exact binomial bound, 1 - 0.025^(1/n), so that 8 failures out of 8 read as [0, 0.37].

    Example:
        >>> round(mean_interval([0.0, 0.0, 0.0]).high, 3)
        0.708
    """
    n = len(values)
    if n == 0:
        return Interval(mean=math.nan, low=math.nan, high=math.nan, n=0)
    mean = fmean(values)
    if n == 1:
        return Interval(mean=mean, low=math.nan, high=math.nan, n=1)
    if all(value == 0.0 for value in values):
        return Interval(mean=0.0, low=0.0, high=1 - 0.025 ** (1 / n), n=n)
    if all(value == 1.0 for value in values):
        return Interval(mean=1.0, low=0.025 ** (1 / n), high=1.0, n=n)
    half = t_quantile(n - 1) * stdev(values) / math.sqrt(n)
    return Interval(mean=mean, low=mean - half, high=mean + half, n=n)


def clipped_t_interval(values: Sequence[float]) -> Interval:
    """As `mean_interval` for values between 0 and 1, which is where the ends stay, too."""
    found = mean_interval(values)
    if math.isnan(found.low):
        return found
    low, high = max(0.0, found.low), min(1.0, found.high)
    return Interval(mean=found.mean, low=low, high=high, n=found.n)


def paired_difference(before: Mapping[str, float], after: Mapping[str, float]) -> Interval:
    """Mean of `after - before` over the tasks that have both, with its t interval.

    Pairing takes the difficulty of the tasks out of the interval. When every difference is equal
    their spread says nothing and the ends are unknown.
    """
    common = [task for task in before if task in after]
    differences = [after[task] - before[task] for task in common]
    n = len(differences)
    if n == 0:
        return Interval(mean=math.nan, low=math.nan, high=math.nan, n=0)
    mean = fmean(differences)
    if n == 1 or len(set(differences)) == 1:
        return Interval(mean=mean, low=math.nan, high=math.nan, n=n)
    half = t_quantile(n - 1) * stdev(differences) / math.sqrt(n)
    return Interval(mean=mean, low=mean - half, high=mean + half, n=n)


def pass_at_k(passed: int, n: int, k: int) -> float:
    """Chance that at least one of `k` draws passes, unbiased from `n` samples.

    1 - C(n-c, k) / C(n, k), https://arxiv.org/abs/2107.03374 equation 1.

    Example:
        >>> pass_at_k(1, 4, 2)
        0.5
    """
    if not 0 <= passed <= n or not 1 <= k <= n:
        raise ValueError(f"pass_at_k: impossible counts: passed {passed} of {n}, k {k}")
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)
