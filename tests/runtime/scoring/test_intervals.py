import math

import pytest

from agentrl.metrics.intervals import mean_interval, paired_difference, t_quantile
from agentrl.runtime.scoring.evaluate import pass_at_k


@pytest.mark.parametrize(
    ("df", "expected"),
    [(1, 12.706), (4, 2.776), (5, 2.571), (7, 2.365), (10, 2.228), (30, 2.042), (1000, 1.962)],
)
def test_t_quantile_is_the_table(df: int, expected: float) -> None:
    assert t_quantile(df) == pytest.approx(expected, abs=1e-3)


def test_the_unit_is_the_task() -> None:
    # By hand: mean 0.4, s = 0.3162, t(4) = 2.776, half = 2.776 * 0.3162 / sqrt(5) = 0.3926.
    # Fails if the normal quantile is used (0.277) or the divisor is n instead of n - 1.
    interval = mean_interval([0.0, 0.2, 0.4, 0.6, 0.8])
    assert interval.mean == pytest.approx(0.4)
    assert interval.half == pytest.approx(0.3926, abs=1e-3)


def test_all_failures_are_not_certainty() -> None:
    # Fails if a spread of 0 becomes an interval of width 0.
    interval = mean_interval([0.0] * 8)
    assert (interval.low, interval.mean) == (0.0, 0.0)
    assert interval.high == pytest.approx(0.369, abs=1e-3)
    assert mean_interval([1.0] * 8).low == pytest.approx(0.631, abs=1e-3)


def test_one_task_has_no_interval() -> None:
    interval = mean_interval([0.5])
    assert interval.mean == 0.5
    assert math.isnan(interval.low)
    assert interval.text() == "0.50 [?, ?]"
    assert mean_interval([]).text() == "n/a"


def test_pairing_removes_the_difficulty_of_tasks() -> None:
    # Tasks differ by 0.9, every task gains about 0.1: unpaired this would drown.
    before = {"a": 0.0, "b": 0.45, "c": 0.9, "only-before": 1.0}
    after = {"a": 0.1, "b": 0.56, "c": 0.99, "only-after": 0.0}
    difference = paired_difference(before, after)
    assert difference.n == 3
    assert difference.mean == pytest.approx(0.1)
    assert difference.low > 0.05


def test_pass_at_k_is_unbiased() -> None:
    assert pass_at_k(2, 4, 1) == pytest.approx(0.5)
    # 1 - C(2,2)/C(4,2); fails if draws are taken with replacement (0.75).
    assert pass_at_k(2, 4, 2) == pytest.approx(5 / 6)
    with pytest.raises(ValueError, match="impossible"):
        pass_at_k(5, 4, 2)
