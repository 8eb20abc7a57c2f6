"""The calibration report: golden numbers by fractions, planted samples, and bad input."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from agentrl.errors import DataError
from agentrl.reward.calibration import (
    Calibration,
    CalibrationReport,
    calibration_report,
    length_r2,
    measure_calibration,
)

# Probabilities that the chosen answer is the better one, of which three are wrong (below 1/2).
BY_HAND = [Fraction(*pair) for pair in
           [(9, 10), (3, 20), (3, 4), (3, 5), (1, 5), (19, 20), (9, 20), (7, 10)]]  # fmt: skip


def logits(probabilities: list[Fraction]) -> list[float]:
    return [math.log(p / (1 - p)) for p in probabilities]


def report(apart: Any, **options: Any) -> CalibrationReport:
    apart = np.asarray(apart, dtype=np.float64)
    given = {
        "chosen_lengths": np.full(len(apart), 10),
        "rejected_lengths": np.full(len(apart), 10),
        "temperature": 2.0,
    }
    return calibration_report(apart, np.zeros(len(apart)), **{**given, **options})


def test_golden_numbers_of_eight_pairs() -> None:
    """Every bin holds one pair: its error is |outcome - p|, with p folded to 1/2 and up."""
    found = measure_calibration(logits(BY_HAND), None)
    errors = [1 - p for p in BY_HAND if p > Fraction(1, 2)]
    errors += [1 - p for p in BY_HAND if p < Fraction(1, 2)]
    assert found.ece == pytest.approx(float(sum(errors) / 8), abs=1e-12)
    assert found.max_error == pytest.approx(0.85, abs=1e-12)
    assert found.brier == pytest.approx(float(sum((1 - p) ** 2 for p in BY_HAND) / 8), abs=1e-12)
    product = math.prod(BY_HAND)
    assert found.nll == pytest.approx(-math.log(product) / 8, abs=1e-12)
    assert (found.pairs, found.accuracy) == (8, 5 / 8)
    # (p + z^2/2n -+ z sqrt(p (1-p) / n + z^2 / 4n^2)) / (1 + z^2/n) with p = 5/8, n = 8, by hand.
    assert found.accuracy_low == pytest.approx(0.305742, abs=1e-6)
    assert found.accuracy_high == pytest.approx(0.863156, abs=1e-6)
    assert [each.mean_p for each in found.table] == sorted(each.mean_p for each in found.table)


def test_golden_numbers_of_bins_of_two() -> None:
    """30 pairs in 15 bins: p = 1/2 + k/100, of which every third is wrong."""
    folded = [Fraction(1, 2) + Fraction(k + 1, 100) for k in range(30)]
    right = [k % 3 != 0 for k in range(30)]
    given = [p if won else 1 - p for p, won in zip(folded, right, strict=True)]
    order = np.random.default_rng(0).permutation(30)
    found = measure_calibration([logits(given)[at] for at in order], None)
    errors = [
        abs(Fraction(right[k] + right[k + 1], 2) - (folded[k] + folded[k + 1]) / 2)
        for k in range(0, 30, 2)
    ]
    assert [each.count for each in found.table] == [2] * 15
    assert found.ece == pytest.approx(float(sum(errors) / 15), abs=1e-12)
    assert found.max_error == pytest.approx(float(max(errors)), abs=1e-12)
    variances = [folded[k] * (1 - folded[k]) + folded[k + 1] * (1 - folded[k + 1])
                 for k in range(0, 30, 2)]  # fmt: skip
    chance = math.sqrt(2 / math.pi) * sum(math.sqrt(v) for v in variances) / 30
    assert found.ece_by_chance == pytest.approx(chance, abs=1e-12)


def test_bins_of_uneven_count_weigh_by_their_pairs() -> None:
    """16 pairs: the first bin has two, and counts twice."""
    folded = [Fraction(1, 2) + Fraction(k + 1, 100) for k in range(16)]
    found = measure_calibration(logits(folded), None)
    assert [each.count for each in found.table] == [2] + [1] * 14
    assert found.ece == pytest.approx(float(sum(1 - p for p in folded) / 16), abs=1e-12)


def test_soft_labels_are_the_outcome() -> None:
    """The better answer is known to be the chosen one with 3/4, and the model says 1/5."""
    found = measure_calibration([math.log(1 / 4)], [0.75])
    assert found.table[0].mean_p == pytest.approx(0.8)
    assert found.table[0].share_right == found.accuracy == 0.25
    assert found.ece == pytest.approx(0.55)
    assert found.ece_by_chance == 0
    assert found.brier == pytest.approx(0.75 * 0.64 + 0.25 * 0.04)
    assert found.nll == pytest.approx(-0.75 * math.log(0.2) - 0.25 * math.log(0.8))


def test_equal_rewards_are_right_half_of_the_time() -> None:
    found = measure_calibration([0.0, 0.0, 0.0], None)
    assert (found.accuracy, found.ece, found.brier) == (0.5, 0.0, 0.25)
    assert found.nll == pytest.approx(math.log(2))


def test_pairs_of_one_confidence_do_not_depend_on_their_order() -> None:
    """Fails if bins take equal p in the order of the input: the first bins would be all right."""
    right_first = [1.0] * 30 + [-1.0] * 15
    found = measure_calibration(right_first, None)
    p = 1 / (1 + math.exp(-1.0))
    assert found.ece == pytest.approx(p - 2 / 3, abs=1e-12)
    assert found == measure_calibration(right_first[::-1], None)


def planted(n: int, scale: float) -> Calibration:
    """Labels drawn from sigmoid(D), judged by a model that says scale * D."""
    draw = np.random.default_rng(5)
    apart = draw.normal(0.0, 2.0, n)
    right = draw.random(n) < 1 / (1 + np.exp(-apart))
    return measure_calibration(scale * np.where(right, apart, -apart), None)


def test_a_calibrated_sample_has_the_error_of_its_size_and_an_overconfident_one_more() -> None:
    good = planted(50_000, 1.0)
    assert good.ece < 2 * good.ece_by_chance < 0.02
    assert good.max_error < 5 * good.ece_by_chance
    over = planted(50_000, 3.0)
    assert over.ece > 0.1 > 10 * over.ece_by_chance
    assert over.accuracy == good.accuracy
    assert over.nll > good.nll
    assert over.brier > good.brier


def test_the_error_by_chance_is_the_mean_over_many_draws() -> None:
    draw = np.random.default_rng(11)
    found = []
    for _ in range(200):
        apart = draw.normal(0.0, 1.0, 600)
        right = draw.random(600) < 1 / (1 + np.exp(-apart))
        found.append(measure_calibration(np.where(right, apart, -apart), None))
    mean = sum(each.ece for each in found) / 200
    assert mean == pytest.approx(found[0].ece_by_chance, rel=0.05)


def test_true_probabilities_have_no_error_at_all() -> None:
    apart = np.random.default_rng(2).normal(0.0, 2.0, 400)
    found = measure_calibration(apart, 1 / (1 + np.exp(-apart)))
    assert found.ece == pytest.approx(0.0, abs=1e-14)
    assert found.accuracy == pytest.approx(np.mean(1 / (1 + np.exp(-np.abs(apart)))))


def test_before_and_after_the_temperature() -> None:
    apart = [3.0, -1.0, 0.5]
    found = report(apart)
    assert found.overall.before == measure_calibration(apart, None)
    assert found.overall.after == measure_calibration([1.5, -0.5, 0.25], None)
    assert found.temperature == 2.0


def test_variances_make_the_probabilities_less_sure() -> None:
    found = report([3.0, 3.0], variances=[8 / math.pi, 32 / math.pi])
    expected = [3.0 / math.sqrt(2), 3.0 / math.sqrt(5)]
    assert found.overall.before == measure_calibration(expected, None)
    after = [1.5 / math.sqrt(1 + 1 / 4), 1.5 / math.sqrt(1 + 4 / 4)]
    assert found.overall.after.nll == pytest.approx(measure_calibration(after, None).nll)


def test_length_matched_pairs_and_sources_are_their_own_tables() -> None:
    apart = [1.0, -2.0, 3.0, -4.0, 5.0]
    found = report(
        apart,
        chosen_lengths=[100, 110, 111, 0, 0],  # log 1.1 < 0.1 < log 1.11
        rejected_lengths=[100, 100, 100, 7, 0],
        sources=["web", "code", "web", "code", "code"],
        label_probability=[1.0, 1.0, 1.0, 0.25, 1.0],
    )
    assert found.length_matched is not None
    assert found.length_matched.before == measure_calibration(apart[:2], None)
    assert list(found.by_source) == ["code", "web"]
    assert found.by_source["code"].before == measure_calibration([-2, -4, 5], [1, 0.25, 1])
    assert found.by_source["web"].before == measure_calibration([1.0, 3.0], None)
    unmatched = report([1.0], chosen_lengths=[1], rejected_lengths=[2])
    assert unmatched.length_matched is None
    assert unmatched.by_source == {}


def test_golden_share_of_variance_that_length_explains() -> None:
    lengths, rewards = [1, 2, 3, 4], [1, 3, 2, 5]
    mean_x, mean_y = Fraction(5, 2), Fraction(11, 4)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in zip(lengths, rewards, strict=True))
    xx, yy = (sum((v - m) ** 2 for v in vs) for vs, m in ((lengths, mean_x), (rewards, mean_y)))
    assert length_r2(rewards, lengths) == pytest.approx(float(xy**2 / (xx * yy)), rel=1e-12)
    assert length_r2([2.0, 4.0], [10, 20]) == 1.0
    assert length_r2([1.0, 2.0], [7, 7]) == 0.0
    assert length_r2([1.0, 1.0], [7, 8]) is None


def test_the_report_takes_both_answers() -> None:
    found = calibration_report(
        [1.0, 3.0], [2.0, 5.0],
        chosen_lengths=[1, 2], rejected_lengths=[3, 4], temperature=1.0,
    )  # fmt: skip
    assert found.length_r2 == length_r2([1.0, 3.0, 2.0, 5.0], [1, 2, 3, 4])
    assert found.overall.before == measure_calibration([-1.0, -2.0], None)


def test_the_report_is_json() -> None:
    document = report([1.0, -2.0], sources=["a", "b"]).to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["by_source"]["a"]["after"]["table"][0]["count"] == 1
    assert document["overall"]["before"]["accuracy"] == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "got temperature 0.0, expected a positive number"),
        ({"temperature": math.nan}, "got temperature nan"),
        ({"chosen_lengths": [-1, 2]}, "chosen_lengths: got -1.0 at 0"),
        ({"rejected_lengths": [1]}, "rejected_lengths: got 1 numbers, expected one for each of 2"),
        ({"label_probability": [0.5, -0.1]}, r"label_probability: got -0.1 at 1.*\[0, 1\]"),
        ({"variances": [math.inf, 1.0]}, "variances: got inf at 0"),
        ({"sources": ["a"]}, "got 1 sources, expected one for each of 2"),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        report([1.0, 2.0], **options)


def test_no_pairs_and_broken_rewards() -> None:
    with pytest.raises(DataError, match=r"chosen: got shape \(0,\)"):
        report([])
    with pytest.raises(DataError, match="chosen: got nan at 1"):
        report([1.0, math.nan])
    with pytest.raises(DataError, match="lengths: got 1 numbers"):
        length_r2([1.0, 2.0], [1])
