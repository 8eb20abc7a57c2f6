"""The dynamic filter: which groups have nothing left to teach (DAPO; FORMULAS C.13, F23)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentrl.types.solved import ROUNDING

TOO_HARD = "too_hard"
"""The mean score is at or below the lower bound."""
TOO_EASY = "too_easy"
"""The mean score is at or above the upper bound."""


def why_filtered(scores: Sequence[float], bounds: tuple[float, float] | None) -> str:
    """Why a group is not trained on; empty if it is: lower < mean(score) < upper, both strict.

    Scores and not rewards: a penalty must not move a group in or out. A mean that misses a bound by
    rounding alone has reached it.

    Args:
        scores: of the rollouts that can be trusted. Without any nothing is known of the task, and
            the group is not the filter's business: its rollouts are dropped for reasons of theirs.
        bounds: `reward.dynamic_filtering.keep`; None filters nothing.

    Example:
        >>> why_filtered([1.0, 1.0, 1.0], (0.0, 1.0))
        'too_easy'
        >>> why_filtered([1.0, 0.0, 1.0], (0.0, 1.0))
        ''
    """
    if bounds is None or not scores:
        return ""
    mean = math.fsum(scores) / len(scores)
    if mean <= bounds[0] + ROUNDING:
        return TOO_HARD
    return TOO_EASY if mean >= bounds[1] - ROUNDING else ""
