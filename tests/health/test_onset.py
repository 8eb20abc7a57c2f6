"""The step at which a curve left its course, on curves whose step is known."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl.health import Series
from agentrl.health.measures.onset import onset

_STEPS = np.arange(1, 121)


def series(values: np.ndarray) -> Series:
    return Series(steps=tuple(map(int, _STEPS)), values=tuple(map(float, values)))


def noise(seed: int, size: float) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, size, len(_STEPS))


def grown(at: int, rate: float) -> np.ndarray:
    return np.exp(np.maximum(0, _STEPS - at) * rate)


LEARNED = 0.6 - 0.4 * 0.5 ** (_STEPS / 15)
CURVES = {
    "jump": (np.where(_STEPS >= 46, 1.0, 0.05), 0.05, True, 46, 46),
    "ramp": (np.maximum(0, _STEPS - 60) * 0.02, 0.05, True, 75, 61),
    "rise, then fall": (
        np.minimum(_STEPS / 70, 1) * 0.5 - np.maximum(0, _STEPS - 70) * 0.01, 0.02, False, None, 71
    ),
    "learned, then lost": (LEARNED - np.where(_STEPS >= 90, 0.4, 0), 0.03, False, 92, 90),
    "growth by factors": (0.03 * grown(60, 0.087), 0.002, True, 100, 61),
    "a ramp that has ended": (np.clip((_STEPS - 40) / 50, 0, 1), 0.03, True, None, 41),
    "an outage that is over": (
        np.where((_STEPS >= 30) & (_STEPS < 45), 0.6, 0.0), 0.02, True, 31, 30
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_the_step_is_found_within_five_steps(name: str) -> None:
    """Fails if what was learned before, or what came long after, decides."""
    clean, size, up, seen, true = CURVES[name]
    last = 44 if "over" in name else None
    for seed in range(5):
        found = onset(series(clean + noise(seed, size)), up=up, seen=seen, last=last)
        assert found is not None
        assert abs(found - true) <= 5, (seed, found)


def test_a_curve_of_noise_has_no_onset() -> None:
    found = [onset(series(noise(seed, 1.0)), up=True) for seed in range(40)]
    assert sum(step is None for step in found) >= 34


def test_a_straight_line_began_at_the_start() -> None:
    assert onset(series(_STEPS * 0.01 + noise(0, 0.02)), up=True) == 1


def test_numbers_as_large_as_floats_can_be_are_dated() -> None:
    """Fails if a blow-up overflows the fit, and with it the whole report."""
    blown = np.where(_STEPS >= 90, 1.5e308, -1.5e308)
    assert onset(series(blown), up=True) == 90
    assert onset(series(np.where(_STEPS >= 90, 1e200, 1.0 + noise(0, 0.1))), up=True) == 90


def test_few_or_equal_values_say_nothing() -> None:
    short = Series(steps=(1, 2, 3), values=(0.0, 1.0, 2.0))
    assert onset(short, up=True) is None
    assert onset(series(np.ones(120)), up=True) is None


def test_long_curves_are_dated_to_the_width_of_a_bin() -> None:
    steps = tuple(range(1, 6001))
    values = tuple(float(step >= 4000) + 0.1 * np.sin(step) for step in steps)
    found = onset(Series(steps=steps, values=values), up=True)
    assert found is not None
    assert abs(found - 4000) <= 26
