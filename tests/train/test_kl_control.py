"""The weight of the KL penalty: by the formulas, and only where something was measured."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from agentrl.config.schema import AlgorithmSection
from agentrl.errors import TrainError
from agentrl.train.kl_control import next_kl_coef

TARGETS = {"fixed": None, "proportional": 0.05, "window": (0.05, 0.2)}


def section(controller, *, target=None, horizon=10000):
    return AlgorithmSection(
        kl_coef=0.1, kl_target=TARGETS[controller] if target is None else target, kl_horizon=horizon
    ).resolved(horizon=1)


def after(measured, controller, *, rollouts=64, **changes):
    algorithm = section(controller, **changes)
    return next_kl_coef(0.1, measured=measured, rollouts=rollouts, algorithm=algorithm)


@pytest.mark.parametrize(
    ("measured", "error"),
    [
        (0.05, Fraction(0)),
        (0.055, Fraction(1, 10)),
        (0.045, Fraction(-1, 10)),
        (0.5, Fraction(1, 5)),
        (0.0, Fraction(-1, 5)),
        (-3.0, Fraction(-1, 5)),
    ],
)
def test_proportional_by_hand(measured, error):
    """Fails with the error left unclipped, or with the high target, or its sign turned."""
    want = Fraction(1, 10) * (1 + error * Fraction(64, 1000))
    assert after(measured, "proportional", horizon=1000) == pytest.approx(float(want))


def test_proportional_stays_positive_however_many_rollouts():
    # Without the bound: 0.1 (1 - 0.2 * 600 / 100) = -0.02, a reward for leaving the reference.
    assert after(0.0, "proportional", rollouts=600, horizon=100) == pytest.approx(0.08)


def test_a_target_of_zero_is_always_too_low():
    many = {"rollouts": 100, "horizon": 100, "target": 0.0}
    assert after(1e-9, "proportional", **many) == pytest.approx(0.12)
    assert after(-1e-9, "proportional", **many) == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("measured", "want"),
    [(0.2000001, 0.15), (0.2, 0.1), (0.05, 0.1), (0.1, 0.1), (0.0499999, 0.1 / 1.5)],
)
def test_window_by_hand(measured, want):
    # The bounds themselves are inside. Fails with >= or with the branches exchanged.
    assert after(measured, "window") == pytest.approx(want, rel=1e-12)


def test_fixed_and_unmeasured_stay():
    assert after(9.0, "fixed") == 0.1
    assert after(None, "window") == after(None, "proportional") == 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_kl_that_is_not_finite_is_refused(bad):
    with pytest.raises(TrainError, match=f"KL of {bad}"):
        after(bad, "window")
