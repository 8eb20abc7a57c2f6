"""Numbers of agreement, against values worked out by hand and against planted ones."""

from __future__ import annotations

import random

import pytest

from agentrl.errors import DataError
from agentrl.judges.agreement import LabelledCase, agreement


def cases(table: dict[tuple[float, float], int], per_cluster: int = 1) -> list[LabelledCase]:
    pairs = [pair for pair, count in table.items() for _ in range(count)]
    return [
        LabelledCase(cluster=str(i // per_cluster), label=label, score=score)
        for i, (label, score) in enumerate(pairs)
    ]


def test_kappa_worked_out_by_hand() -> None:
    # 20 + 15 of 50 agree: observed 0.7; chance 0.5 * 0.6 + 0.5 * 0.4 = 0.5; (0.7 - 0.5) / 0.5.
    table = {(1.0, 0.9): 20, (1.0, 0.2): 5, (0.0, 0.8): 10, (0.0, 0.1): 15}
    found = agreement(cases(table))
    assert found.confusion == ((15, 10), (5, 20))
    assert found.accuracy == 0.7
    assert found.kappa == pytest.approx(0.4)
    assert found.weighted_kappa == pytest.approx(0.4)
    assert found.kappa_interval is not None
    low, high = found.kappa_interval
    # Asymptotic standard error of this table: 0.126 (Fleiss, Cohen and Everitt 1969).
    assert (low, high) == pytest.approx((0.4 - 1.96 * 0.126, 0.4 + 1.96 * 0.126), abs=0.03)
    assert found.accuracy_interval == pytest.approx((0.562, 0.809), abs=1e-3)


def test_far_misses_weigh_more_where_labels_have_an_order() -> None:
    near = agreement(cases({(0.0, 0.0): 9, (0.5, 0.5): 9, (1.0, 1.0): 9, (0.0, 0.5): 3}))
    far = agreement(cases({(0.0, 0.0): 9, (0.5, 0.5): 9, (1.0, 1.0): 9, (0.0, 1.0): 3}))
    assert near.accuracy == far.accuracy == 0.9
    assert near.weighted_kappa is not None
    assert far.weighted_kappa is not None
    assert near.weighted_kappa > far.weighted_kappa + 0.1


def test_a_judge_that_says_one_thing_agrees_by_chance_alone() -> None:
    found = agreement(cases({(1.0, 1.0): 90, (0.0, 1.0): 10}))
    assert (found.accuracy, found.kappa) == (0.9, 0.0)


def test_cases_of_one_prompt_are_drawn_together() -> None:
    """Fails if ten answers to a prompt count as ten times the evidence."""
    table = {(1.0, 1.0): 200, (1.0, 0.0): 50, (0.0, 1.0): 100, (0.0, 0.0): 150}
    alone = agreement(cases(table)).kappa_interval
    together = agreement(cases(table, per_cluster=10)).kappa_interval
    assert alone is not None
    assert together is not None
    assert together[1] - together[0] > 2 * (alone[1] - alone[0])


def test_intervals_hold_the_planted_kappa() -> None:
    rng = random.Random(0)
    held = 0
    for seed in range(40):
        drawn = []
        for i in range(150):
            label = float(rng.random() < 0.5)
            score = label if rng.random() < 0.8 else 1.0 - label
            drawn.append(LabelledCase(cluster=str(i), label=label, score=score))
        interval = agreement(drawn, seed=seed).kappa_interval
        assert interval is not None
        held += interval[0] <= 0.6 <= interval[1]
    assert held >= 34


def test_labels_that_say_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="1 different labels, expected 2 to 10; label good and bad"):
        agreement(cases({(1.0, 1.0): 5}))
    with pytest.raises(DataError, match="30 different labels, expected 2 to 10; round them"):
        agreement(cases({(i / 30, 1.0): 1 for i in range(30)}))
    with pytest.raises(DataError, match="0 labelled cases"):
        agreement([])
