"""Each penalty against numbers worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from agentrl.reward import why_filtered
from agentrl.reward.penalties import clipped, misses_eos, overlong, stop_properly
from agentrl.types import FinishReason
from tests.reward.reward_rollouts import rollout


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, Fraction(0)),
        (90, Fraction(0)),
        (91, Fraction(-1, 10) * Fraction(1, 2)),
        (95, Fraction(-5, 10) * Fraction(1, 2)),
        (100, Fraction(-1, 2)),
        # Several rows, or turns of a budget each: longer than the budget, and still capped (verl
        # and AReaL give -1 here).
        (110, Fraction(-1, 2)),
    ],
)
def test_overlong(length: int, expected: Fraction) -> None:
    got = overlong(length, most=100, buffer=10, factor=0.5)
    assert got == pytest.approx(float(expected), abs=1e-15)
    assert str(got) != "-0.0"  # a zero that no log shows with a sign


@pytest.mark.parametrize(
    ("reward", "coef", "expected"),
    [(1.0, 0.25, 0.25), (1.0, 0.0, 0.0), (1.0, 1.0, 1.0), (1.0, -0.5, -0.5), (-2.0, -0.5, -0.5)],
)
def test_stop_properly_both_forms(reward: float, coef: float, expected: float) -> None:
    assert stop_properly(reward, coef) == expected


def test_a_missing_stop_token() -> None:
    stop, cut = FinishReason.STOP, FinishReason.LENGTH
    assert not misses_eos([rollout("a", 1.0, finish=stop)])
    assert misses_eos([rollout("a", 1.0, finish=cut)])
    # The last turn of the policy decides: in whatever row, whatever the environment said after it.
    assert misses_eos([rollout("a", 1.0, finish=stop), rollout("a", 1.0, finish=cut, row_index=1)])
    assert misses_eos([rollout("a", 1.0, finish=cut, environment=3)])
    assert not misses_eos([rollout("a", 1.0, turns=())])


def test_clip() -> None:
    assert [clipped(value, (-1.0, 2.0)) for value in (-3.0, 0.5, 2.5)] == [-1.0, 0.5, 2.0]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0, 1.0, 1.0], "too_easy"),
        ([0.0, 0.0], "too_hard"),
        ([1.0, 0.0], ""),
        ([], ""),
        ([0.0, -1.0], "too_hard"),
        ([1.5, 0.6], "too_easy"),
    ],
)
def test_the_filter_is_strict(scores: list[float], expected: str) -> None:
    assert why_filtered(scores, (0.0, 1.0)) == expected
    assert why_filtered(scores, None) == ""


def test_the_filter_sums_exactly() -> None:
    """Fails with a plain sum: ten times 0.1 is 0.9999999999999999, whose mean is below 0.1."""
    assert why_filtered([0.1] * 10, (0.0, 0.1)) == "too_easy"
