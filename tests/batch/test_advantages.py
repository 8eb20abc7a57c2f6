"""Blocks A, C and D against numbers worked out with fractions."""

from __future__ import annotations

import math
from fractions import Fraction as F
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.batch.advantages import turn_advantages
from agentrl.batch.returns import rewards_to_go, token_kl
from agentrl.batch.whitening import whiten
from agentrl.errors import DataError
from agentrl.estimators.critic import gae_advantages
from tests.batch.group_advantages import group_advantages

BASELINES = ("rloo", "reinforce_baseline", "dr_grpo", "group_norm")
ESTIMATORS = (*BASELINES, "reinforce", "gae")


def advantages(rewards, estimator, ddof=1, eps=1e-6):
    return group_advantages(rewards, estimator=estimator, ddof=ddof, eps=eps).tolist()


def by_turn(rewards, estimator, gamma=1.0, ddof=1, eps=1e-6):
    found = turn_advantages(rewards, estimator=estimator, gamma=gamma, ddof=ddof, eps=eps)
    return [None if a is None else a.tolist() for a in found]


@pytest.mark.parametrize("estimator", ["reinforce", "gae"])
def test_without_a_baseline_the_reward_stays(estimator):
    assert advantages([0.25, None, -3.0], estimator) == [0.25, 0.0, -3.0]
    assert advantages([0.7], estimator) == [0.7]


@pytest.mark.parametrize("estimator", ["reinforce_baseline", "dr_grpo"])
def test_the_mean_of_the_group_is_taken_off(estimator):
    rewards = [F(1), F(1, 4), F(0), F(3, 4), F(1, 2)]
    mean = sum(rewards) / 5
    assert advantages([float(r) for r in rewards], estimator) == [float(r - mean) for r in rewards]


def test_rloo_takes_off_the_mean_of_the_others():
    """Fails (0.5 for 0.625) if the own reward is in the mean."""
    rewards = [F(1), F(1, 4), F(0), F(3, 4), F(1, 2)]
    want = [r - (sum(rewards) - r) / 4 for r in rewards]
    assert advantages([float(r) for r in rewards], "rloo") == [float(a) for a in want]
    assert advantages([1.0, None, 0.0], "rloo") == [1.0, 0.0, -1.0]


@pytest.mark.parametrize("ddof", [0, 1])
def test_group_norm_of_an_uneven_group(ddof):
    rewards = [F(1), F(0), F(0)]
    mean = F(1, 3)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (3 - ddof))
    want = [float(r - mean) / (std + 1e-3) for r in rewards]
    got = advantages([float(r) for r in rewards], "group_norm", ddof=ddof, eps=1e-3)
    assert got == pytest.approx(want, rel=1e-14)


@pytest.mark.parametrize("estimator", BASELINES)
def test_a_singleton_and_an_all_equal_group_have_exactly_nothing(estimator):
    """Fails (1.4e-17) for rloo if the others' mean of equal rewards is computed."""
    assert advantages([0.7], estimator) == [0.0]
    assert advantages([None, 0.7], estimator) == [0.0, 0.0]
    assert advantages([0.1] * 3, estimator) == [0.0] * 3
    assert by_turn([[0.5, 0.7]], estimator) == [[0.0, 0.0]]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_an_error_for_every_estimator(estimator, bad):
    with pytest.raises(DataError, match=str(bad)):
        advantages([1.0, bad, 0.0], estimator)


def test_returns_to_go_are_compared_with_whole_returns():
    """Fails if turn 2 is compared with the one sibling that reached it: F27's bias."""
    rewards = [[1.0, 2.0, 4.0], [3.0], [0.0, 1.0]]  # whole returns 7, 3, 1
    mean = F(11, 3)
    want = [[7 - mean, 6 - mean, 4 - mean], [3 - mean], [1 - mean, 1 - mean]]
    got = by_turn(rewards, "dr_grpo")
    assert got == [pytest.approx([float(a) for a in part], rel=1e-15) for part in want]
    others = [F(2), F(4), F(5)]
    want = [[7 - others[0], 6 - others[0], 4 - others[0]], [3 - others[1]], [1 - others[2]] * 2]
    assert by_turn(rewards, "rloo") == [[float(a) for a in part] for part in want]
    assert by_turn(rewards, "reinforce") == [[7.0, 6.0, 4.0], [3.0], [1.0, 1.0]]
    std = math.sqrt(float(sum((g - mean) ** 2 for g in (7, 3, 1)) / 2))
    assert by_turn(rewards, "group_norm")[0] == pytest.approx(
        [float(a - mean) / (std + 1e-6) for a in (7, 6, 4)]
    )


def test_returns_to_go_are_discounted_by_turn_and_skip_the_unscored():
    got = by_turn([[1.0, 2.0, 4.0], None, [3.0]], "dr_grpo", gamma=0.5)
    assert got == [[0.0, 1.0, 1.0], None, [0.0]]  # returns 3, 4, 4 and 3; mean 3
    assert by_turn([None], "rloo") == [None]


def test_a_group_without_spread_is_not_divided_by_eps():
    """Fails (a million) if turns that differ are divided by the deviation of equal returns."""
    assert by_turn([[1.0, 0.0], [0.0, 1.0]], "group_norm") == [[0.0, 0.0], [0.0, 0.0]]
    assert by_turn([[1.0, 0.0], [0.0, 1.0]], "dr_grpo") == [[0.0, -1.0], [0.0, 0.0]]
    # Added up from the end, the first is 1 - 1.1e-16.
    assert sum((0.7, 0.2, 0.1)) < 1.0
    assert by_turn([[0.1, 0.2, 0.7], [1.0]], "group_norm") == [[0.0, 0.0, 0.0], [0.0]]


def test_the_estimate_is_unbiased_where_the_policy_decides_when_to_stop():
    """All pairs of rollouts of a two-turn problem, in fractions, against the true gradient.

    Turn 1 earns 1 and goes on with probability p; turn 2 earns 5 with probability q, else 2. The
    expectation of sum_k grad log pi_k A_k is the gradient of J = 1 + p (2 + 3q) for leave-one-out,
    and (G - 1) / G of it where the own return is in the mean. Fails (0 for d/dp: going on would be
    worth nothing) if the reward of a turn is compared among those that reached it.
    """
    p, q = F(1, 4), F(1, 2)
    rollouts = [  # probability, rewards by turn, d log pi by turn as (d/dp, d/dq)
        (1 - p, [1], [(-1 / (1 - p), F(0))]),
        (p * q, [1, 5], [(1 / p, F(0)), (F(0), 1 / q)]),
        (p * (1 - q), [1, 2], [(1 / p, F(0)), (F(0), -1 / (1 - q))]),
    ]
    for estimator, share in (("rloo", F(1)), ("dr_grpo", F(1, 2)), ("reinforce_baseline", F(1, 2))):
        found = [F(0), F(0)]
        for one, two in product(rollouts, repeat=2):
            first = by_turn([one[1], two[1]], estimator)[0]
            assert first is not None
            for advantage, score in zip(first, one[2], strict=True):
                for place in (0, 1):
                    found[place] += one[0] * two[0] * score[place] * F(advantage)
        assert found == [share * (2 + 3 * q), share * 3 * p], estimator


@given(
    st.lists(
        st.one_of(st.none(), st.lists(st.floats(-10, 10), min_size=1, max_size=4)), max_size=6
    ),
    st.randoms(),
)
def test_permuted_siblings_keep_their_advantages_to_the_last_bit(rewards, rng):
    """Fails if any statistic is summed in the order of the siblings."""
    order = list(range(len(rewards)))
    rng.shuffle(order)
    for estimator in ESTIMATORS:
        want = by_turn(rewards, estimator)
        got = by_turn([rewards[i] for i in order], estimator)
        assert got == [want[i] for i in order]


def test_rewards_to_go():
    assert rewards_to_go([1.0, 2.0, 4.0], gamma=0.5).tolist() == [3.0, 4.0, 4.0]
    # Tokens of times 0 0 1 3: no discount inside a turn, two steps from 1 to 3.
    got = rewards_to_go([1.0, 1.0, 1.0, 8.0], gamma=0.5, times=[0, 0, 1, 3])
    assert got.tolist() == [1 + 1 + F(1, 2) * 3, 1 + F(1, 2) * 3, 1 + F(1, 4) * 8, 8]
    assert rewards_to_go([], gamma=0.5).tolist() == []
    assert rewards_to_go([], gamma=0.5, times=[]).tolist() == []


@given(
    st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=6),
    st.sampled_from([F(1), F(3, 4), F(1, 2)]),
    st.sampled_from([F(0), F(1, 2), F(1)]),
)
def test_gae_is_the_sum_of_its_definition(steps, gamma, lam):
    rewards = [F(r, 4) for r, _ in steps]
    values = [F(v, 4) for _, v in steps]
    after = [*values[1:], F(0)]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    want = [
        sum((gamma * lam) ** i * delta for i, delta in enumerate(deltas[t:]))
        for t in range(len(steps))
    ]
    found = gae_advantages(
        [float(r) for r in rewards],
        [float(v) for v in values],
        gamma=float(gamma),
        lam=float(lam),
    )
    assert found == [float(a) for a in want]


def test_whitening():
    # Mean 2, variance with ddof 1 is (1 + 0 + 1 + 4 + 4) / 4 = 5/2.
    values = np.array([1.0, 2.0, 3.0, 0.0, 4.0])
    want = [(v - 2) / math.sqrt(2.5 + 1e-8) for v in values]
    assert whiten(values).tolist() == pytest.approx(want, rel=1e-15)
    assert whiten(values, no_std_norm=True).tolist() == [-1.0, 0.0, 1.0, -2.0, 2.0]


def test_whitening_of_equal_advantages_is_exactly_zero():
    """Fails (1e-13 and more) if the mean of equal numbers is computed."""
    for values in ([], [0.7], [0.1] * 3):
        for no_std_norm in (False, True):
            assert whiten(np.array(values), no_std_norm=no_std_norm).tolist() == [0.0] * len(values)


@given(st.lists(st.floats(-10, 10), max_size=20), st.randoms())
def test_whitening_does_not_depend_on_the_order_of_tokens(values, rng):
    order = list(range(len(values)))
    rng.shuffle(order)
    whole = whiten(np.array(values, dtype=np.float64))
    assert whiten(np.array(values, dtype=np.float64)[order]).tolist() == whole[order].tolist()


def test_kl_of_tokens():
    apart = np.array([0.0, 0.5, -2.0])
    assert token_kl(apart, "k1").tolist() == [0.0, 0.5, -2.0]
    assert token_kl(apart, "k2").tolist() == [0.0, 0.125, 2.0]
    k3 = [0.0, math.exp(-0.5) - 0.5, math.exp(2.0) - 3.0]
    assert token_kl(apart, "k3").tolist() == pytest.approx(k3, rel=1e-15)
    assert token_kl(apart, "k3+").tolist() == token_kl(apart, "k3").tolist()
    # Clamped at 20 before exp, and only there.
    assert token_kl(np.array([-1e4]), "k3")[0] == pytest.approx(math.exp(20.0) - 21.0, rel=1e-15)
    assert token_kl(np.array([1e4]), "k1").tolist() == [1e4]
    with pytest.raises(DataError, match=r"kl_estimator.*'k4'.*k2"):
        token_kl(apart, "k4")  # type: ignore[arg-type]
