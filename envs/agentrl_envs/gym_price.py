"""The price of a step that is not made, so that doing nothing never pays more than playing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

_STEPS = 300
_SEED = 0


def price_of_idling(make: Callable[[], Any]) -> float:
    """The mean reward of a step of random play, or 0 where that is not negative.

    Random play for at most T steps returns (mean reward of a step) x (steps made) on average. Where
    the mean is negative, T steps at that price are no more than that, and random play is no better
    than the best: so who does nothing for T steps is never ahead.

    Args:
        make: makes the game anew; it is played with a fixed seed and closed.
    """
    game = make()
    try:
        game.action_space.seed(_SEED)
        game.reset(seed=_SEED)
        total = 0.0
        for _ in range(_STEPS):
            _, reward, terminated, truncated, _ = game.step(game.action_space.sample())
            total += float(reward)
            if terminated or truncated:
                game.reset()
        return min(0.0, total / _STEPS) if math.isfinite(total) else 0.0
    finally:
        game.close()
