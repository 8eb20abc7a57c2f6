"""Random numbers and curve shapes that the streams are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]
_T = TypeVar("_T")
_WIDER = 0.25
"""A fresh set takes its parameters from ranges wider by this share at both ends."""


class Draw:
    """Parameters of one stream: all that is random about it, from one seed.

    Args:
        seed: of the set.
        name: of the stream, so that a new stream does not move the others.
        fresh: whether to draw from the wider ranges and the other lengths of run.
    """

    def __init__(self, seed: int, name: str, *, fresh: bool) -> None:
        self.rng = np.random.default_rng([seed, *name.encode()])
        self.fresh = fresh

    def between(self, low: float, high: float) -> float:
        """A number of the range; the wider range never changes sign."""
        extra = _WIDER * (high - low) if self.fresh else 0.0
        bottom = max(low - extra, low * 0.7) if low >= 0 else low - extra
        return float(self.rng.uniform(bottom, high + extra))

    def steps(self, nominal: int) -> int:
        """Length of a run: 30, 200 or 1000, or some other number near it in a fresh set."""
        return round(nominal * self.rng.uniform(0.7, 1.6)) if self.fresh else nominal

    def one_of(self, choices: Sequence[_T]) -> _T:
        return choices[int(self.rng.integers(len(choices)))]


def line(n: int, first: float, last: float) -> Curve:
    """Straight from the first step to the last."""
    return np.linspace(first, last, n)


def decay(n: int, first: float, last: float, half: float) -> Curve:
    """From `first` towards `last`; half of the way after the share `half` of the run."""
    return last + (first - last) * 0.5 ** (np.arange(n) / max(1e-9, half * n))


def shift(n: int, before: float, after: float, at: float, width: float = 0.02) -> Curve:
    """A logistic step at the share `at` of the run, `width` of the run wide."""
    x = (np.arange(n) / n - at) / max(width, 1e-6)
    return before + (after - before) / (1 + np.exp(-np.clip(x, -60, 60)))


def geometric(n: int, first: float, last: float) -> Curve:
    """By a constant factor a step."""
    return np.geomspace(first, last, n)


def noisy(draw: Draw, curve: Curve, sd: float) -> Curve:
    """Times log-normal noise of that deviation."""
    return curve * np.exp(draw.rng.normal(0.0, sd, len(curve)))
