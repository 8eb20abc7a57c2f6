"""The weight of the KL penalty from step to step, as a pure function of what was measured."""

from __future__ import annotations

import math

from agentrl.config.schema import AlgorithmSection
from agentrl.errors import TrainError

MAX_CORRECTION = 0.2
"""The proportional controller corrects as if the KL were at most this share off its target."""
WINDOW_FACTOR = 1.5
"""The window controller multiplies or divides by this."""


def next_kl_coef(
    kl_coef: float, *, measured: float | None, rollouts: int, algorithm: AlgorithmSection
) -> float:
    """The weight for the next step (FORMULAS F20).

        fixed         b
        proportional  b (1 + clip(KL / target - 1, -0.2, 0.2) min(n, horizon) / horizon)
        window        1.5 b if KL > high, b / 1.5 if KL < low, else b

    `proportional` is section 2.2 of https://arxiv.org/abs/1909.08593 with its horizon in rollouts;
    the min, which is not in there, keeps the weight
    positive in steps of more than five horizons.

    Args:
        kl_coef: b, the weight in this step; stays 0 if it is.
        measured: mean KL of this step in nats a trained token; None where no token was trained,
            which leaves the weight alone.
        rollouts: n, rollouts of this step.
        algorithm: resolved; its `kl_target` and `kl_horizon`.

    Raises:
        TrainError: a KL that is not finite.

    Example:
        >>> section = AlgorithmSection(kl_target=(0.05, 0.2), kl_coef=0.1)
        >>> next_kl_coef(0.1, measured=0.01, rollouts=64, algorithm=section)
        0.06666666666666667
    """
    target = algorithm.kl_target
    if measured is None or target is None:
        return kl_coef
    if not math.isfinite(measured):
        raise TrainError(
            f"the KL controller ({algorithm.kl_control}) got a KL of {measured}, expected a "
            "finite number of nats a token"
        )
    if isinstance(target, tuple):
        low, high = target
        if measured > high:
            return kl_coef * WINDOW_FACTOR
        return kl_coef / WINDOW_FACTOR if measured < low else kl_coef
    # A target of 0 would ask for a policy that never moves: every KL above it is too large.
    if target > 0.0:
        error = (measured - target) / target
    else:
        error = measured * math.inf if measured else 0.0
    error = max(-MAX_CORRECTION, min(MAX_CORRECTION, error))
    share = min(rollouts, algorithm.kl_horizon) / algorithm.kl_horizon
    return kl_coef * (1.0 + error * share)
