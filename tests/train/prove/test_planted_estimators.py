"""`agentrl prove` finds faults in advantage estimators, and passes those in float32."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl.config.schema import AlgorithmSection
from agentrl.estimators import GroupRewards, advantage_estimator, find_estimator
from agentrl.train.prove.estimator import estimator_checks
from agentrl.types.finding import Status


def failures(name: str) -> dict[str, str]:
    algorithm = AlgorithmSection(advantage_estimator=name).resolved(horizon=32)
    checks = estimator_checks(
        find_estimator(name), [], algorithm=algorithm, clip_shaped=None, seed=0
    )
    return {c.name: c.detail for c in checks if c.status is Status.FAIL}


@advantage_estimator("planted_flipped", compares_siblings=True)
def flipped(group: GroupRewards):
    mean = sum(group.rewards) / len(group.rewards)
    return [mean - reward for reward in group.rewards]


@advantage_estimator("planted_order", compares_siblings=True)
def order(group: GroupRewards):
    """Compares with the first of the group."""
    return [reward - group.rewards[0] for reward in group.rewards]


@advantage_estimator("peer_std_float32", compares_siblings=True)
def std_float32(group: GroupRewards):
    rewards = np.array(group.rewards, dtype=np.float32)
    return list((rewards - rewards.mean()) / (rewards.std() + np.float32(1e-6)))


@advantage_estimator("peer_ranks", compares_siblings=True)
def ranks(group: GroupRewards):
    return [sum(r > other for other in group.rewards) - 0.5 for r in group.rewards]


@advantage_estimator("peer_constant")
def constant(group: GroupRewards):
    """Every rollout is imitated alike."""
    return [1.0 for _ in group.rewards]


def test_an_estimator_that_prefers_the_worst_is_found():
    broken = failures("planted_flipped")
    assert set(broken) == {"estimator, direction"}
    assert (
        "the best of 2 rollouts has less advantage than the worst" in broken["estimator, direction"]
    )


def test_an_estimator_that_depends_on_the_order_is_found():
    assert "estimator, order of siblings" in failures("planted_order")


@pytest.mark.parametrize("name", ["peer_std_float32", "peer_ranks", "peer_constant"])
def test_a_correct_estimator_passes(name):
    assert not failures(name)


@advantage_estimator("peer_shuffled_sum_float32", compares_siblings=True)
def shuffled_sum(group: GroupRewards):
    """A sum in float32 has other last digits in another order."""
    total = np.float32(0.0)
    for reward in group.rewards:
        total += np.float32(reward)
    return [np.float32(reward) - total / np.float32(len(group.rewards)) for reward in group.rewards]


def test_sums_in_float32_are_compared_as_such():
    """The bound of float64 accuses it: last digits of the sum follow the order."""
    assert not failures("peer_shuffled_sum_float32")
