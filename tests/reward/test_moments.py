"""The running statistics of rewards: exact, saved exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import DataError
from agentrl.reward import RunningMoments

NUMBERS = st.floats(min_value=-100, max_value=100, allow_nan=False)


def by_hand(numbers: list[float]) -> tuple[Fraction, Fraction]:
    exact = [Fraction(number) for number in numbers]
    mean = sum(exact, Fraction(0)) / len(exact)
    return mean, sum(((number - mean) ** 2 for number in exact), Fraction(0)) / (len(exact) - 1)


@given(st.lists(st.lists(NUMBERS, max_size=5), min_size=1, max_size=6))
def test_like_one_pass_over_all_numbers(steps: list[list[float]]) -> None:
    moments = RunningMoments()
    for step in steps:
        moments = moments.after(step)
    numbers = [number for step in steps for number in step]
    assert moments.count == len(numbers)
    if len(numbers) < 2:
        assert moments.std == 1.0
        return
    mean, variance = by_hand(numbers)
    assert moments.mean == pytest.approx(float(mean), abs=1e-10)
    if variance > Fraction(1, 10**12):
        assert moments.std**2 == pytest.approx(float(variance), rel=1e-9)


@given(st.lists(NUMBERS, min_size=1, max_size=8), st.randoms())
def test_order_inside_a_step_changes_no_bit(numbers: list[float], random: object) -> None:
    other = list(numbers)
    random.shuffle(other)  # type: ignore[attr-defined]
    before = RunningMoments().after([1.0, 3.5])
    assert before.after(numbers) == before.after(other)


@given(st.lists(NUMBERS, min_size=1, max_size=8))
def test_saved_to_the_bit(numbers: list[float]) -> None:
    moments = RunningMoments().after(numbers)
    assert RunningMoments.parse(moments.dump()) == moments


def test_equal_rewards_are_not_divided_by_rounding() -> None:
    """Fails with std + eps: (0.1 - mean) / 1e-8 of three steps of 0.1 would not be about 0."""
    moments = RunningMoments()
    for _ in range(7):
        moments = moments.after([0.1, 0.1, 0.1])
    assert moments.std == 1.0
    assert RunningMoments().after([2.0]).std == 1.0


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(DataError, match="nan"):
        RunningMoments().after([1.0, float("nan")])
    with pytest.raises(DataError, match="cannot be read"):
        RunningMoments.parse('{"count": 1}')


def test_statistics_of_one_version_go_on_and_others_begin() -> None:
    moments = RunningMoments().of_version(2).after([1.0, 3.0])
    assert moments.of_version(2) is moments
    assert moments.of_version(3) == RunningMoments(rm_version=3)
    assert RunningMoments.parse(moments.dump()) == moments
    # Those of a checkpoint that knows no versions.
    assert RunningMoments.parse('{"count": 1, "mean": 2.0, "squares": 0.0}').rm_version == 0
