"""A level counts for most steps of a window, and until it is clearly over."""

from __future__ import annotations

import pytest

from agentrl.health import DETECTORS, History, Status, limits
from agentrl.health.level import held, steps_text
from agentrl.health.measures.curves import Stretch
from tests.health.detectors.test_shapes import curve

STEPS = 90
GAP = {"sampling/sampling_logp_difference/mean": 0.06}
AROUND = {
    "truncation": {"completions/clipped_ratio": (0.75, 0.6)},
    "empty_gradient": {"frac_reward_zero_std": (0.98, 0.9)},
    "clip_fraction": {"clip_ratio/region_mean": (0.12, 0.08)},
    "sampler_learner_gap": GAP | {"rollout_corr/ess": (0.45, 0.6)},
    "kl_too_small": {"kl": (0.004, 0.006), "reward": 0.3},
    "reward_flat": {"reward": (0.0, 0.03)},
    "grad_norm": {"train/grad_norm": (15.0, 8.0)},
    "reward_clipped": {
        "reward_shaping/clip/at_bound": (0.6, 0.4), "reward_shaping/clip/share": 0.3
    },
    "tool_errors": {"tools/failure_frequency": (0.65, 0.5)},
    "starvation": {"rollout/stale_dropped": (18.0, 12.0), "rollout/started": 100.0},
    "infrastructure": {
        "rollout/termination/sandbox_failed": (6.0, 3.0), "rollout/started": 100.0
    },
    "reward_model_drift": {"rewards/rm/mean": (5.5, 4.5)},
}  # fmt: skip
"""Detector to curves: one value throughout, or five steps beyond its bound and one within."""


def drawn(levels: dict[str, float | tuple[float, float]], until: int) -> History:
    metrics = {}
    for metric, level in levels.items():
        beyond, within = level if isinstance(level, tuple) else (level, level)
        values = [within if step % 6 == 0 else beyond for step in range(1, until + 1)]
        metrics[metric] = curve(values)
    return History(metrics=metrics, config={"reward.models.rm.path": ["rm0"]})


def statuses(name: str, levels: dict[str, float | tuple[float, float]]) -> set[Status]:
    """What a detector gives at each of the last steps of a run in which nothing changes."""
    found = DETECTORS.find(name)
    return {found(drawn(levels, n), limits()).status for n in range(STEPS // 2, STEPS)}


@pytest.mark.parametrize("name", AROUND)
def test_no_verdict_comes_and_goes_while_nothing_changes(name: str) -> None:
    """Fails if a run is healthy at one step and ill two steps later, for one step in six that is
    on the other side of a bound."""
    (status,) = statuses(name, AROUND[name])
    assert status in (Status.WARN, Status.FAIL)


def test_entropy_that_swings_around_its_floor_is_one_finding() -> None:
    low = [1.0] * 5 + [0.06 if step % 4 == 0 else 0.04 for step in range(60)]
    found = DETECTORS.find("entropy_collapse")
    seen = {
        found(History(metrics={"entropy": curve(low[:n])}), limits()).status for n in range(30, 65)
    }
    assert seen == {Status.FAIL}


def test_a_level_begins_with_most_of_a_window_and_ends_when_most_are_back() -> None:
    values = [0.0, 2.0, 2.0, 0.0, 2.0, 2.0, *[0.0] * 7, 2.0, *[0.0] * 9]
    assert held(curve(values), lambda v: v > 1, 5) == [
        Stretch(first_step=2, last_step=6, length=5, passing=4, worst=2.0)
    ]
    (now,) = held(curve(values[:12]), lambda v: v > 1, 5)
    assert (now.last_step, steps_text(now)) == (12, "4 of 11 steps, 2-12")
    assert not held(curve([2.0, 0.0] * 20), lambda v: v > 1, 5)
    assert not held(curve([2.0] * 4), lambda v: v > 1, 5)


def test_a_share_of_small_batches_counts_by_its_mean_too() -> None:
    """Fails if 80 % of all rollouts are not seen because three of them make a step."""
    shares = [1.0, 2 / 3, 1.0, 2 / 3, 2 / 3, 1.0] * 5
    assert not held(curve(shares), lambda v: v > 0.7, 10)
    (period,) = held(curve(shares), lambda v: v > 0.7, 10, mean=True)
    assert (period.first_step, period.last_step) == (1, 30)


def test_a_zero_reward_that_is_paid_at_last_is_not_called_zero_for_long() -> None:
    found = DETECTORS.find("reward_flat")
    paid = {"reward": curve([0.0] * 20 + [0.05, 0.1, 0.2])}
    assert found(History(metrics=paid), limits()).status is Status.OK
