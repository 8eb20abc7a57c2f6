"""The price of a step that is not made, so that doing nothing never pays more than playing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_STEPS = 300
_SEED = 0
_MOST_GAMES = 256
_known: dict[str, IdlePrice] = {}


@dataclass(frozen=True, slots=True)
class IdlePrice:
    """Costs of turns without an action, by what random play earns and how long it lasts."""

    step: float
    """The mean reward of a step of random play, or 0 where that is not negative."""
    length: float
    """Mean number of steps of a random episode; infinite where none has ended."""

    def rest(self, made: int, most: int) -> float:
        """The price of the steps that are missing in a game that ended early.

        It is `step * max(0, min(length, most) - made)`, so all steps of an episode together cost
        no more than random play loses in one, however many turns a rollout could have had.

        Args:
            made: turns taken, with and without an action.
            most: steps after which every episode ends.
        """
        return self.step * max(0.0, min(self.length, most) - made)


def price_of_idling(game: str, make: Callable[[], Any]) -> IdlePrice:
    """The price of idling, measured once for a game in this process.

    Random play returns (mean reward of a step) x (mean steps of an episode) on average. Where the
    mean is negative, that many steps at that price are no more than it, and random play is no
    better than the best: so doing nothing is never ahead.

    Args:
        game: names the game and its arguments; equal names share the price.
        make: makes the game anew; it is played with a fixed seed and closed.
    """
    if game not in _known:
        if len(_known) >= _MOST_GAMES:
            _known.clear()
        _known[game] = _measured(make)
    return _known[game]


def _measured(make: Callable[[], Any]) -> IdlePrice:
    game = make()
    try:
        game.action_space.seed(_SEED)
        game.reset(seed=_SEED)
        total, ended = 0.0, 0
        for _ in range(_STEPS):
            _, reward, terminated, truncated, _ = game.step(game.action_space.sample())
            total += float(reward)
            if terminated or truncated:
                ended += 1
                game.reset()
        step = min(0.0, total / _STEPS) if math.isfinite(total) else 0.0
        return IdlePrice(step=step, length=_STEPS / ended if ended else math.inf)
    finally:
        game.close()
