"""Confidence intervals: of a share, of a mean over tasks, and of a difference paired by task.

The unit of a score is the task: rollouts of one task are alike, so they are averaged first and the
interval is taken over tasks (clustered standard errors, https://arxiv.org/abs/2411.00640 section
2.2, here with Student's t instead of the normal quantile because a held-out set may hold eight
tasks).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

_Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
_T_SMALL = {1: 12.706205, 2: 4.302653, 3: 3.182446, 4: 2.776445}
"""That of Student's t, by degrees of freedom."""


def wilson_interval(scores: Sequence[float]) -> tuple[float, float] | None:
    """Wilson's 95 % interval of a mean of scores from 0 to 1; None where it has no meaning.

    Wilson 1927, "Probable inference, the law of succession, and statistical inference", as in
    https://doi.org/10.1214/ss/1009213286 section 3.1.1. Scores between 0 and 1 vary less than the
    0 and 1 it is made for, so the interval is then too wide rather than too narrow.

    Example:
        >>> [round(end, 2) for end in wilson_interval([0.0] * 8)]
        [0.0, 0.32]
    """
    n = len(scores)
    if n == 0 or min(scores) < 0 or max(scores) > 1:
        return None
    mean, square = math.fsum(scores) / n, _Z**2
    middle = (mean + square / (2 * n)) / (1 + square / n)
    half = _Z / (1 + square / n) * math.sqrt(mean * (1 - mean) / n + square / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def t_quantile(df: float) -> float:
    """The 97.5 % quantile of Student's t, to 4 digits, for any degrees of freedom from 1.

    Exact values up to 4, then Hill's expansion around the normal quantile (Abramowitz and Stegun
    26.7.5); fractions, as Welch's formula gives them, are rounded down.

    Example:
        >>> round(t_quantile(7), 3)
        2.365
    """
    df = math.floor(df)
    if df < 1:
        raise ValueError(f"t_quantile: degrees of freedom must be at least 1, got {df}")
    if df in _T_SMALL:
        return _T_SMALL[df]
    z = _Z
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + g1 / df + g2 / df**2 + g3 / df**3 + g4 / df**4


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


def score_interval(values: Sequence[float]) -> Interval:
    """As `mean_interval` for scores: where all are from 0 to 1, the ends are, too.

    Example:
        >>> score_interval([0.0, 0.0, 0.0, 0.1]).low
        0.0
    """
    within = all(0 <= value <= 1 for value in values)
    return clipped_t_interval(values) if within else mean_interval(values)


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
