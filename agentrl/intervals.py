"""Confidence interval of a share, for every stage that counts successes."""

from __future__ import annotations

import math
from collections.abc import Sequence

_Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


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
