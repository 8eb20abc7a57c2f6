"""The policy loss against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl.config.schema import TrainSection
from agentrl.errors import TrainError
from agentrl.train.backend import compensation
from agentrl.train.losses import policy_loss, sampler_metrics
from agentrl.train.schedule import learning_rate


def loss(ratios, advantages, weights=None, mask=None, low=0.2, high=0.28):
    """Loss, gradient by log-prob and metrics for tokens with these ratios."""
    log_probs = torch.tensor([math.log(r) - 2.0 for r in ratios], dtype=torch.float64)
    log_probs.requires_grad_()
    size = len(ratios)
    result = policy_loss(
        log_probs,
        old_log_probs_R=torch.full((size,), -2.0, dtype=torch.float64),
        advantages_R=torch.tensor(advantages, dtype=torch.float64),
        weights_R=torch.tensor(weights or [1.0] * size, dtype=torch.float64),
        mask_R=torch.tensor(mask or [True] * size),
        eps_clip_low=low,
        eps_clip_high=high,
    )
    result.loss.backward()
    assert log_probs.grad is not None
    return result.loss.item(), log_probs.grad.tolist(), result.metrics.result()


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


def test_sampler_metrics_by_hand():
    lp, sampler = torch.tensor([-1.0, -2.0, 5.0]), torch.tensor([-1.5, -1.0, float("nan")])
    got = sampler_metrics(lp, sampler, torch.tensor([True, True, False])).result()
    assert got["sampling/sampling_logp_difference/mean"] == pytest.approx(0.75)
    assert got["sampling/sampling_logp_difference/max"] == pytest.approx(1.0)
    assert got["sampling/importance_sampling_ratio/min"] == pytest.approx(math.exp(-1))
    assert got["sampling/importance_sampling_ratio/max"] == pytest.approx(math.exp(0.5))
    assert got["rollout_corr/kl"] == pytest.approx(0.25)


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
