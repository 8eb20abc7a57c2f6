"""Numbers behind the detectors, against numpy and against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl.health import Series
from agentrl.health.measures.curves import (
    change,
    current,
    difference,
    medians,
    smoothed,
    stretches,
    trend,
)
from agentrl.health.measures.texts import LetterModel, alike_share, plain_text, repeated_share
from agentrl.metrics.intervals import t_quantile


def series(*values: float) -> Series:
    return Series(steps=tuple(range(1, len(values) + 1)), values=values)


@pytest.mark.parametrize(
    ("df", "value"), [(1, 12.706), (4, 2.776), (5, 2.571), (7.9, 2.365), (30, 2.042), (9999, 1.960)]
)
def test_quantiles_are_those_of_the_table(df: float, value: float) -> None:
    assert t_quantile(df) == pytest.approx(value, abs=1e-3)


def test_a_slope_and_its_interval_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    x = np.arange(1, 13)
    y = 0.3 + 0.02 * x + rng.normal(0, 0.05, 12)
    found = trend(series(*y))
    assert found is not None
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    half = t_quantile(10) * covariance[0, 0] ** 0.5
    assert found.gain == pytest.approx(11 * slope)
    assert (found.high - found.low) / 2 == pytest.approx(11 * half, rel=1e-6)
    assert not found.down


def test_known_errors_give_the_interval_of_weighted_least_squares() -> None:
    errors = [0.1, 0.1, 0.2, 0.05]
    found = trend(series(0.0, 0.1, 0.9, 0.3), errors)
    assert found is not None
    weights = 1 / np.array(errors)
    slope, _ = np.polyfit([1, 2, 3, 4], [0.0, 0.1, 0.9, 0.3], 1, w=weights)
    _, covariance = np.polyfit([1, 2, 3, 4], [0.0, 0.1, 0.9, 0.3], 1, w=weights, cov="unscaled")
    assert found.gain == pytest.approx(3 * slope)
    assert (found.high - found.low) / 2 == pytest.approx(
        3 * 1.96 * covariance[0, 0] ** 0.5, rel=1e-4
    )


def test_a_difference_is_welch() -> None:
    # By hand: means 2 and 5, variances 1 and 4, of 3 and 4 values.
    found = difference([1, 2, 3], [3, 4, 6, 7])
    first, second = 1 / 3, np.var([3, 4, 6, 7], ddof=1) / 4
    df = (first + second) ** 2 / (first**2 / 2 + second**2 / 3)
    half = t_quantile(df) * (first + second) ** 0.5
    assert (found.start, found.end) == (2, 5)
    assert found.high - found.low == pytest.approx(2 * half)
    assert difference([1.0, 1.0], [2.0, 2.0]).up, "without noise any difference is certain"


def test_stretches_pass_over_steps_that_do_not_log() -> None:
    curve = Series(steps=(1, 5, 6, 9, 20), values=(0.0, 3.0, 4.0, 0.0, 5.0))
    first, second = stretches(curve, lambda v: v > 2)
    assert (first.first_step, first.last_step, first.length, first.worst) == (5, 6, 2, 4.0)
    assert current(curve, lambda v: v > 2) == second
    assert current(curve, lambda v: v < 2) is None


def test_short_curves_say_nothing() -> None:
    assert change(series(1.0, 2.0, 3.0)) is None
    assert trend(series(1.0, 2.0)) is None
    assert trend(Series(steps=(4, 4, 4), values=(1.0, 2.0, 3.0))) is None


def test_windows() -> None:
    assert smoothed(series(1.0, 2.0, 6.0), 2).values == (1.5, 4.0)
    assert medians(series(1.0, 9.0, 2.0, 3.0), 3) == Series(steps=(3, 4), values=(2.0, 3.0))


def test_loops_are_seen_with_and_without_spaces() -> None:
    assert repeated_share("wait, let me check that again. " * 10) > 0.8
    assert repeated_share("abab" * 60) > 0.8
    assert repeated_share("one two three four five six seven eight nine ten eleven twelve") == 0.0


def test_likeness_is_between_tasks() -> None:
    long = "add {0} to {0}, take {0} off, {0} is left, so {0} it is"
    same = [(str(n), long.format(str(n) * 9)) for n in range(6)]
    assert alike_share(same) == 1.0, "digits do not make a difference"
    assert alike_share([(str(n), "yes") for n in range(6)]) is None
    assert alike_share([("one task", text) for _, text in same]) is None
    other = ["a cat sat on a mat by the door", "return the sum of all even numbers",
             "to be or not to be is a question", "print every line that holds a word"]  # fmt: skip
    assert alike_share([(str(n), text) for n, text in enumerate(other)]) == 0.0


def test_a_letter_model_is_surprised_by_what_it_has_not_read() -> None:
    read = ["the cat sat on the mat", "the dog ran to the wall"] * 5
    model = LetterModel(read)
    known, noise = model.bits(["the cat ran to the mat"]), model.bits(["qx7}zk#w!vj9&pqy%xz@k"])
    assert known is not None
    assert noise is not None
    assert noise > 3 * known
    assert model.bits([]) is None


@pytest.mark.parametrize("text", ["007 or 10 x 100", "0", "0000", "a1b22c333", "no digit", ""])
def test_numbers_are_folded_alike_in_ascii_and_in_other_texts(text: str) -> None:
    """Fails if the quick way for ASCII parts from that for all other texts."""
    assert plain_text(f"\u00e9 {text}") == f"\u00e9 {plain_text(text)}".strip()
