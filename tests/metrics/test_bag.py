from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.metrics import MetricBag

parts = st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5), min_size=1, max_size=5)


@given(parts)
def test_bags_of_any_size_merge_into_the_mean_of_all(values: list[list[float]]) -> None:
    # Fails if means are averaged instead of sums and counts.
    whole = MetricBag()
    for part in values:
        bag = MetricBag()
        bag.mean("x", math.fsum(part), count=len(part))
        for value in part:
            bag.sum("total", value)
            bag.max("most", value)
            bag.min("least", value)
        whole.merge(bag)
    flat = [value for part in values for value in part]
    result = whole.result()
    assert result["x"] == pytest.approx(math.fsum(flat) / len(flat), rel=1e-9, abs=1e-6)
    assert result["total"] == pytest.approx(math.fsum(flat), rel=1e-9, abs=1e-6)
    assert (result["most"], result["least"]) == (max(flat), min(flat))


def test_a_mean_of_nothing_is_left_out() -> None:
    bag = MetricBag()
    bag.mean("x", 0.0, count=0)
    assert bag.result() == {}


def test_one_name_has_one_rule() -> None:
    bag = MetricBag()
    bag.mean("x", 1.0)
    with pytest.raises(ValueError, match="'x' is both 'mean' and 'sum'"):
        bag.sum("x", 1.0)


def test_marks_choose_the_rule() -> None:
    bag = MetricBag()
    for value in (1.0, 3.0):
        bag.add_marked({"a": value, "b@sum": value, "c@max": value, "d@min": value}, prefix="env/")
    assert bag.result() == {"env/a": 2.0, "env/b": 4.0, "env/c": 3.0, "env/d": 1.0}
    with pytest.raises(ValueError, match="unknown reduction 'avg'"):
        bag.add_marked({"a@avg": 1.0})


@pytest.mark.parametrize("rule", ["max", "min"])
def test_nan_is_not_hidden_by_max_and_min(rule: str) -> None:
    bag = MetricBag()
    for value in (1.0, math.nan, 2.0):
        getattr(bag, rule)("x", value)
    assert math.isnan(bag.result()["x"])
