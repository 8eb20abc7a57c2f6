"""Wilson's interval against the quadratic that defines it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from agentrl.metrics.intervals import wilson_interval

Z = Fraction(1959963984540054, 10**15)


@pytest.mark.parametrize(("right", "n"), [(1, 2), (3, 8), (70, 100), (9_990, 10_000)])
def test_both_ends_lie_z_deviations_from_the_share(right: int, n: int) -> None:
    """Fails if an end does not solve (share - x)^2 = z^2 x (1 - x) / n, Wilson's definition."""
    ends = wilson_interval([1.0] * right + [0.0] * (n - right))
    assert ends is not None
    share = Fraction(right, n)
    assert ends[0] < share < ends[1]
    for end in map(Fraction, ends):
        apart, allowed = (share - end) ** 2, Z**2 * end * (1 - end) / n
        assert float(apart) == pytest.approx(float(allowed), rel=1e-9)


def test_of_few_scores() -> None:
    low, high = wilson_interval([1.0, 0.0]) or (0, 0)
    assert (round(low, 3), round(high, 3)) == (0.095, 0.905)
    assert wilson_interval([1.0] * 8) == pytest.approx((0.6756, 1.0), abs=1e-4)
    assert wilson_interval([]) is None
    assert wilson_interval([2.0, 0.0]) is None
