"""The temperature of a reward model: planted ones come back, and none is made up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from agentrl.errors import DataError
from agentrl.reward.temperature import (
    fit_regular_temperature,
    fit_temperature,
    log_losses,
    sigmoid,
    win_logits,
)


def drawn(n: int, temperature: float, seed: int = 0) -> np.ndarray:
    """Differences whose labels were drawn from sigmoid(D / T)."""
    draw = np.random.default_rng(seed)
    apart = draw.normal(0.0, 3.0, n)
    right = draw.random(n) < 1 / (1 + np.exp(-apart / temperature))
    return np.where(right, apart, -apart)


def test_a_planted_temperature_comes_back() -> None:
    """Eight samples of 50 000 pairs: their mean to 1 %, each to 4 standard errors."""
    found = [fit_temperature(drawn(50_000, 2.0, seed)) for seed in range(8)]
    apart = drawn(50_000, 2.0)
    slope = sigmoid(apart / 2.0) * sigmoid(-apart / 2.0)
    # Fisher's information on 1 / T, relative: sum of (D / T)^2 p (1 - p).
    error = 1 / math.sqrt(np.sum((apart / 2.0) ** 2 * slope))
    assert error < 0.01
    assert sum(found) / 8 == pytest.approx(2.0, rel=0.01)
    assert found == pytest.approx([2.0] * 8, rel=4 * error)


def test_a_planted_temperature_comes_back_from_soft_labels() -> None:
    apart = drawn(1000, 2.0)
    soft = 1 / (1 + np.exp(-apart / 2.0))
    assert fit_temperature(apart, label_probability=soft) == pytest.approx(2.0, rel=1e-9)


@pytest.mark.parametrize("scale", [0.01, 0.3, 40.0])
def test_the_temperature_has_the_unit_of_the_reward(scale: float) -> None:
    apart = drawn(500, 2.0)
    assert fit_temperature(apart * scale) == pytest.approx(scale * fit_temperature(apart), rel=1e-9)


def test_in_closed_form() -> None:
    # Three of four right at a distance of 2: sigmoid(2 / T) = 3/4, so T = 2 / log 3.
    assert fit_temperature([2.0, 2.0, -2.0, 2.0]) == pytest.approx(2 / math.log(3), rel=1e-12)


def test_no_temperature_beside_it_is_better() -> None:
    apart, label = drawn(300, 0.7), np.ones(300)
    best = fit_temperature(apart)

    def loss(temperature: float) -> float:
        return float(np.mean(log_losses(win_logits(apart, temperature, None), label)))

    assert all(loss(best) < loss(best * factor) for factor in (0.5, 0.99, 1.01, 2.0))


def test_a_planted_temperature_comes_back_through_variances() -> None:
    draw = np.random.default_rng(1)
    apart, variances = draw.normal(0.0, 3.0, 2000), draw.uniform(0.0, 8.0, 2000)
    soft = sigmoid(win_logits(apart, 2.0, variances))
    found = fit_temperature(apart, variances=variances, label_probability=soft)
    assert found == pytest.approx(2.0, rel=1e-9)
    without = fit_temperature(apart, label_probability=soft)
    assert without > 2.2, "variances make a model less sure, or the test shows nothing"


def test_a_minimum_at_a_trial_temperature_is_found() -> None:
    """Fails if a slope of exactly 0, which many of these have there, hides the change of sign."""
    trial = 1.0 / float(np.geomspace(1e-3, 1e3, 121)[60])
    for apart in np.linspace(0.1, 3.0, 40):
        soft = sigmoid(np.array([apart]) / trial)
        found = fit_temperature([apart], variances=[0.0], label_probability=soft)
        assert found == pytest.approx(1.0, rel=1e-9)


def test_variances_of_zero_change_nothing() -> None:
    apart = drawn(200, 2.0)
    with_zero = fit_temperature(apart, variances=np.zeros(200))
    assert with_zero == pytest.approx(fit_temperature(apart), rel=1e-12)


@pytest.mark.parametrize(("clear", "small", "expected"), [(20, 10, 0.66), (10, 20, 0.0091)])
def test_the_lowest_of_several_minima_is_taken(clear: int, small: int, expected: float) -> None:
    """Clear pairs, 80 % right, whose variances bound their logits by 4; small ones, 90 % right.

    Fails if the first or the last sign change of the slope is taken for the best temperature.
    """
    apart = np.repeat([1.0, 0.02], [clear, small])
    variances = np.repeat([1 / (2 * math.pi), 0.0], [clear, small])
    soft = np.repeat([0.8, 0.9], [clear, small])
    trials = np.geomspace(1e-3, 1e3, 2001)
    losses = [float(np.mean(log_losses(win_logits(apart, t, variances), soft))) for t in trials]
    minima = [at for at in range(1, 2000) if losses[at - 1] > losses[at] < losses[at + 1]]
    assert len(minima) == 2, "with one minimum the test shows nothing"
    found = fit_temperature(apart, variances=variances, label_probability=soft)
    assert found == pytest.approx(trials[int(np.argmin(losses))], rel=0.007)
    assert found == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("differences", "options", "message"),
    [
        ([0.1, 2.0, 3.0], {}, "3 of 3 pairs are ordered right and none wrong.*bound 0.001"),
        ([5000.0, 2000.0], {}, "2 of 2 pairs are ordered right and none wrong.*bound 0.001"),
        ([0.0, 2.0], {}, "1 of 2 pairs are ordered right and none wrong"),
        ([-1.0, -2.0], {}, "0 of 2 pairs.*all that differ are wrong.*bound 1000.*wrong way round"),
        ([0.0, 0.0], {}, "all 2 differences of rewards are 0"),
        ([3.0, -3.0], {}, "1 of 2 pairs.*bound 1000.*better than chance"),
        ([3e-6, 2e-6, -1e-6], {}, "2 of 3 pairs.*bound 0.001.*scale the rewards up"),
        ([3e6, 2e6, -1e6], {}, "2 of 3 pairs.*bound 1000.*scale the rewards down"),
        ([-1.0, 1.0], {"label_probability": [0.0, 1.0]}, "2 of 2 pairs are ordered right and none"),
        ([1.0, 2.0], {"variances": [1.0, 1.0]}, "2 of 2 pairs are ordered right and none wrong"),
        ([], {}, r"got shape \(0,\), expected one number a pair"),
        ([[1.0]], {}, r"got shape \(1, 1\), expected one number a pair"),
        (["x"], {}, "differences: got no numbers"),
        ([1.0, math.nan], {}, "differences: got nan at 1, expected finite numbers"),
        ([1.0], {"variances": [-1.0]}, "variances: got -1.0 at 0, expected finite numbers in"),
        ([1.0], {"variances": [1.0, 2.0]}, "variances: got 2 numbers, expected one for each of 1"),
        ([1.0], {"label_probability": [1.5]}, r"label_probability: got 1.5 at 0.* in \[0, 1\]"),
    ],
)
def test_what_has_no_temperature(
    differences: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        fit_temperature(differences, **options)


def test_pairs_that_are_all_right_get_the_temperature_of_platts_targets() -> None:
    """Fails without a prior, with one that does not fade with more pairs, or with a silent one."""
    few, many = (fit_regular_temperature(np.full(count, 2.0)) for count in (8, 998))
    assert few.value == pytest.approx(2.0 / math.log(9), rel=1e-9)
    assert many.value == pytest.approx(2.0 / math.log(999), rel=1e-9)
    assert few.prior.startswith("all 8 pairs that differ are ordered right")
    assert few.prior.endswith("Platt's target 9/10")
    turned = fit_regular_temperature([2.0, -2.0], label_probability=[1.0, 0.0])
    assert turned.value == pytest.approx(2.0 / math.log(3), rel=1e-9)


def test_the_prior_does_nothing_where_the_pairs_decide() -> None:
    """Fails if the prior moves a temperature that the pairs give by themselves."""
    apart = drawn(300, 2.0, 3)
    found = fit_regular_temperature(apart)
    assert found.value == fit_temperature(apart)
    assert found.prior == ""
    soft = fit_regular_temperature([2.0, 2.0], label_probability=[0.9, 0.9])
    assert soft.prior == ""
    assert soft.value == pytest.approx(2.0 / math.log(9), rel=1e-9)


def test_the_prior_repairs_no_model_that_is_wrong_or_unsure() -> None:
    """Fails if pairs that are all wrong, or variances that hide the order, get a number."""
    with pytest.raises(DataError, match="wrong way round"):
        fit_regular_temperature([-1.0, -2.0])
    with pytest.raises(DataError, match="all 2 differences of rewards are 0"):
        fit_regular_temperature([0.0, 0.0])
    with pytest.raises(DataError, match="the variances too large"):
        fit_regular_temperature([1.0] * 8, variances=[90.0] * 8)
    calm = fit_regular_temperature([1.0] * 8, variances=[0.01] * 8)
    logit = win_logits([1.0], calm.value, np.array([0.01]))
    assert logit[0] == pytest.approx(math.log(9), rel=1e-9)
