"""The score of a solved task, told apart from what rounding makes of a sum.

Ten turns of 0.1 sum to 0.9999999999999999, and a sum of float32 rewards misses 1 by 1e-7. Whatever
asks if a task is solved, or if a score has reached a bound, asks here.
"""

from __future__ import annotations

SOLVED = 1.0
"""Score of a task that is solved in full."""
ROUNDING = 1e-6
"""Scores that differ by no more are one score."""


def is_solved(score: float) -> bool:
    """True for a score of 1, or one that misses it by rounding alone.

    Example:
        >>> is_solved(sum([0.1] * 10)), is_solved(0.999)
        (True, False)
    """
    return reaches(score, SOLVED)


def reaches(score: float, bound: float) -> bool:
    """True for a score of at least `bound`, or one that misses it by rounding alone.

    Example:
        >>> reaches(0.3 - 0.2, 0.1), reaches(0.09, 0.1)
        (True, False)
    """
    return score >= bound - ROUNDING


def unrounded(score: float) -> float:
    """The whole number that a score misses by rounding alone; any other score as it is.

    What is stored went through here, so that queries may compare with 0 and 1.

    Example:
        >>> unrounded(sum([0.1] * 10)), unrounded(0.25)
        (1.0, 0.25)
    """
    whole = round(score)
    return float(whole) if abs(score - whole) <= ROUNDING else score
