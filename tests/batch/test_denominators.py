"""Advantages and aggregation weights against numbers worked out by hand."""

from __future__ import annotations

from fractions import Fraction as F
from itertools import permutations

import numpy as np
import pytest

from agentrl.batch.denominators import GlobalCounts, count, token_weight
from agentrl.errors import ConfigError, DataError
from agentrl.estimators.statistics import group_statistics
from tests.batch.group_advantages import group_advantages


def advantages(rewards, estimator="dr_grpo", ddof=1, eps=1e-6):
    return group_advantages(rewards, estimator=estimator, ddof=ddof, eps=eps).tolist()


def test_dr_grpo_removes_the_mean_of_the_group():
    assert advantages([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    assert advantages([1.0, 0.0, 0.5]) == [0.5, -0.5, 0.0]


def test_grpo_with_eight_rollouts_and_one_success():
    # FORMULAS F8: 2.475 with ddof 1, 2.646 (the square root of 7) with ddof 0.
    rewards = [1.0] + [0.0] * 7
    mean = F(1, 8)
    variance = ((1 - mean) ** 2 + 7 * mean**2) / 7
    assert advantages(rewards, "group_norm", eps=1e-12)[0] == pytest.approx(
        float(1 - mean) / float(variance) ** 0.5
    )
    assert advantages(rewards, "group_norm", eps=1e-12)[0] == pytest.approx(2.475, abs=5e-4)
    assert advantages(rewards, "group_norm", ddof=0, eps=1e-12)[0] == pytest.approx(7**0.5)


def test_eps_is_added_to_the_deviation():
    # std of (1, 0) is sqrt(1/2); with eps 1 the quotient is 0.5 / (sqrt(0.5) + 1).
    assert advantages([1.0, 0.0], "group_norm", eps=1.0)[0] == pytest.approx(0.5 / (0.5**0.5 + 1))


@pytest.mark.parametrize("estimator", ["dr_grpo", "group_norm"])
def test_a_single_rollout_and_equal_rewards_have_exactly_no_advantage(estimator):
    # 0.1 three times does not sum to 0.3: fails if the spread of equal rewards is computed.
    assert advantages([0.7], estimator) == [0.0]
    assert advantages([0.1, 0.1, 0.1], estimator) == [0.0, 0.0, 0.0]


def test_rollouts_without_a_reward_are_outside_the_baseline():
    # Fails (0.66 and -0.33) if a missing reward counts as 0.
    assert advantages([1.0, None, 0.0]) == [0.5, 0.0, -0.5]
    assert advantages([1.0, None], "group_norm") == [0.0, 0.0]
    assert advantages([None, None]) == [0.0, 0.0]


def test_the_order_of_siblings_does_not_matter():
    rewards = [0.1, 0.2, 0.30000000000000004, 0.7]
    for order in permutations(range(4)):
        got = advantages([rewards[i] for i in order], "group_norm")
        want = advantages(rewards, "group_norm")
        assert got == [want[i] for i in order]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_an_error_with_its_value(bad):
    with pytest.raises(DataError, match=str(bad)):
        group_statistics([1.0, bad], ddof=1)


# Two rollouts of 4 and 6 trained tokens, H = 16: N = 10, B = 2.
COUNTS = {"global_tokens": 10, "global_sequences": 2, "horizon": 16}


@pytest.mark.parametrize(
    ("mode", "own", "weight"),
    [
        ("token-mean", 4, F(1, 10)),
        ("token-mean", 6, F(1, 10)),
        ("seq-mean-token-mean", 4, F(1, 8)),
        ("seq-mean-token-mean", 6, F(1, 12)),
        ("seq-mean-token-sum", 4, F(1, 2)),
        ("seq-mean-token-sum-norm", 4, F(1, 32)),
        ("seq-mean-token-sum-norm", 6, F(1, 32)),
    ],
)
def test_weight_of_one_token(mode, own, weight):
    assert token_weight(mode, rollout_tokens=own, **COUNTS) == float(weight)


def test_aggregating_by_weights_is_the_formula():
    # Token losses l = 1..4 and 1..6, summed by fractions.
    rows = [[F(i) for i in range(1, 5)], [F(i) for i in range(1, 7)]]
    want = {
        "token-mean": F(10 + 21, 10),
        "seq-mean-token-mean": (F(10, 4) + F(21, 6)) / 2,
        "seq-mean-token-sum": F(10 + 21, 2),
        "seq-mean-token-sum-norm": F(10 + 21, 2 * 16),
    }
    for mode, value in want.items():
        got = sum(
            token_weight(mode, rollout_tokens=len(row), **COUNTS) * float(loss)
            for row in rows
            for loss in row
        )
        assert got == pytest.approx(float(value), rel=1e-15), mode


def test_counts_leave_out_rollouts_without_a_trained_token():
    got = count([4, 0, 6], horizon=16)
    assert got == GlobalCounts(**COUNTS)


@pytest.mark.parametrize("name", ["global_tokens", "global_sequences", "horizon"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, None])
def test_a_denominator_that_is_not_positive_is_named(name, value):
    # None must never mean 1.
    with pytest.raises(DataError, match=name):
        token_weight("token-mean", rollout_tokens=1, **{**COUNTS, name: value})


def test_denominators_are_required_keywords():
    with pytest.raises(TypeError):
        token_weight("token-mean", rollout_tokens=1, global_tokens=10, horizon=16)  # type: ignore[call-arg]


def test_unknown_names_list_the_valid_ones():
    with pytest.raises(DataError, match="seq-mean-token-sum-norm"):
        token_weight("token_mean", rollout_tokens=1, **COUNTS)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="dr_grpo"):
        advantages([1.0], "gspo")
    assert np.isfinite(advantages([1.0, 2.0])).all()
