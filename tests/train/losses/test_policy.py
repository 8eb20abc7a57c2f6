"""The policy loss against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from agentrl.config.schema import TrainSection
from agentrl.errors import TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.contract import compensation
from agentrl.train.losses import derive_metrics
from agentrl.train.optim.schedule import learning_rate, learning_rates
from tests.train.losses.loss_parts import evaluate, section


def loss(ratios, advantages, weights=None, mask=None, **changes):
    """Loss, gradient by log-prob and metrics for tokens with these ratios to the old policy."""
    got = evaluate(
        section(**changes),
        now=[math.log(r) - 2.0 for r in ratios],
        old=[-2.0] * len(ratios),
        advantages=advantages,
        weights=weights,
        mask=mask,
        compare_sampler=False,
    )
    metrics = {name: value for name, value in got.metrics.items() if name != "entropy"}
    return got.loss, got.slopes, metrics


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.25, 1.0, -1.25, -1.25),  # inside clip-higher 1.28
        (1.5, 1.0, -1.28, 0.0),  # clipped from above
        (1.5, -1.0, 1.5, 1.5),  # not clipped: the pessimistic branch
        (0.5, -1.0, 0.8, 0.0),  # clipped from below
        (0.5, 1.0, -0.5, -0.5),  # not clipped
    ],
)
def test_one_token(ratio, advantage, value, slope):
    # d l / d lp = -A rho where the ratio is not clipped. Fails with symmetric bounds (1.25 at 0.2).
    got, (gradient,), _ = loss([ratio], [advantage])
    assert got == pytest.approx(value)
    assert gradient == pytest.approx(slope)


def test_sums_are_weighted_and_not_divided():
    got, _, _ = loss([1.0, 1.0, 1.0], [1.0, 2.0, 4.0], weights=[0.5, 0.25, 0.125])
    assert got == pytest.approx(-1.5)


def test_extreme_log_ratios_are_clamped():
    # exp(20) for a negative advantage, finite; beyond the clamp the gradient is 0.
    got, (gradient,), _ = loss([math.exp(50)], [-1.0])
    assert got == pytest.approx(math.exp(20))
    assert gradient == 0.0


def test_clip_metrics_count_tokens_by_side():
    _, _, metrics = loss([1.5, 1.5, 0.5, 1.0], [1.0, -1.0, -1.0, 1.0])
    assert metrics["clip_ratio/high_mean"] == pytest.approx(1 / 4)
    assert metrics["clip_ratio/low_mean"] == pytest.approx(1 / 4)
    assert metrics["clip_ratio/region_mean"] == pytest.approx(1 / 2)
    assert metrics["train/ratio_mean"] == pytest.approx(4.5 / 4)
    assert metrics["train/ratio_max"] == pytest.approx(1.5)


def test_nothing_trained_is_zero_and_has_no_means():
    got, gradient, metrics = loss([1.0], [1.0], mask=[False])
    assert got == 0.0
    assert gradient == [0.0]
    assert metrics == {}


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (5.0, -2.0, 6.0, 0.0),  # rho A = -10 is below c A = -6: bounded, without gradient
        (2.5, -2.0, 5.0, 5.0),  # not yet
        (0.5, -2.0, 1.6, 0.0),  # the lower bound, as without
        (5.0, 2.0, -2.56, 0.0),  # a positive advantage knows no c
    ],
)
def test_dual_clip_bounds_the_loss_of_negative_advantages(ratio, advantage, value, slope):
    # c = 3. Fails if c A is taken for positive advantages, too (the last case would be -6), and
    # with the minimum of the two (10 in the first).
    got, (gradient,), metrics = loss([ratio], [advantage], dual_clip=3.0)
    assert got == pytest.approx(value)
    assert gradient == pytest.approx(slope)
    assert metrics["clip_ratio/dual_mean"] == (ratio == 5.0 and advantage < 0)


def test_sampler_metrics_by_hand():
    got = evaluate(
        section(),
        now=[-1.0, -2.0, 5.0],
        rollout=[-1.5, -1.0, float("nan")],
        advantages=[1.0, 1.0, 1.0],
        mask=[True, True, False],
    ).metrics
    assert got["sampling/sampling_logp_difference/mean"] == pytest.approx(0.75)
    assert got["sampling/sampling_logp_difference/max"] == pytest.approx(1.0)
    assert got["sampling/importance_sampling_ratio/min"] == pytest.approx(math.exp(-1))
    assert got["sampling/importance_sampling_ratio/max"] == pytest.approx(math.exp(0.5))
    assert got["rollout_corr/kl"] == pytest.approx(0.25)


def test_effective_sample_size_is_taken_after_merging():
    # Weights 2 and 1, then 1/2, in two micro-batches: (7/2)^2 / (3 (4 + 1 + 1/4)) = 7/9. The mean
    # of the two micro-batches' own, 9/10 and 1, is what fails.
    merged, ln2 = MetricBag(), math.log(2)
    for now, rollout in (([-1.0, -2.0], [-1.0 - ln2, -2.0]), ([-3.0], [-3.0 + ln2])):
        size = len(now)
        got = evaluate(section(), now=now, rollout=rollout, advantages=[1.0] * size).metrics
        for name in ("mean", "square_mean"):
            merged.mean(
                f"rollout_corr/ratio_{name}", size * got[f"rollout_corr/ratio_{name}"], count=size
            )
    derive_metrics(merged)
    assert merged.result()["rollout_corr/ess"] == pytest.approx(7 / 9)
    assert merged.result()["rollout_corr/chi2"] == pytest.approx(21 / 12 - 1)


def test_compensation_undoes_a_mean_over_ranks_only():
    assert compensation(data_parallel_size=4, averages_over_ranks=True) == 4.0
    assert compensation(data_parallel_size=4, averages_over_ranks=False) == 1.0
    with pytest.raises(TrainError, match="is 0"):
        compensation(data_parallel_size=0, averages_over_ranks=True)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]),
    ],
)
def test_schedules(schedule, rates):
    train = TrainSection(learning_rate=1.0, schedule=schedule, warmup_steps=1, steps=5)
    assert [learning_rate(step, train) for step in range(5)] == pytest.approx(rates)
    assert learning_rate(5, train) == (1.0 if schedule == "constant" else 0.0)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_rate_moves_with_every_update_of_a_step(schedule):
    """Three updates a step are the schedule of three times as many steps of one update."""
    short = TrainSection(learning_rate=1.0, schedule=schedule, warmup_steps=2, steps=6)
    long = TrainSection(learning_rate=1.0, schedule=schedule, warmup_steps=6, steps=18)
    found = [rate for step in range(6) for rate in learning_rates(step, short, updates=3)]
    assert found == pytest.approx([learning_rate(step, long) for step in range(18)])
    # However many updates the steps before had, a step begins at its place.
    assert learning_rates(4, short, updates=1)[0] == learning_rates(4, short, updates=5)[0]
    assert learning_rates(1, short, updates=0) == (learning_rate(1, short),)
