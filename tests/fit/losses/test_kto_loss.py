"""KTO and its reference point against 40-digit arithmetic, and their limits."""

from __future__ import annotations

import mpmath
import pytest
import torch

from agentrl.errors import TrainError
from agentrl.fit.losses.pair_losses import kto_loss, kto_z0

mpmath.mp.dps = 40
KTO = {"beta": 0.4, "desirable_weight": 1.5, "undesirable_weight": 0.75}


def test_kto_golden_numbers():
    ratios, good = [1.25, -3.0, 0.5, 8.0], [True, True, False, False]
    log_ratio = torch.tensor(ratios, dtype=torch.float64, requires_grad=True)
    loss = kto_loss(log_ratio, torch.tensor(good), 0.625, **KTO)
    (slope,) = torch.autograd.grad(loss.sum(), log_ratio)

    def value(r, desirable):
        sign, weight = (1, mpmath.mpf(1.5)) if desirable else (-1, mpmath.mpf(0.75))
        utility = weight / (1 + mpmath.exp(-sign * mpmath.mpf(0.4) * (r - mpmath.mpf(0.625))))
        return weight - utility

    for index, (ratio, desirable) in enumerate(zip(ratios, good, strict=True)):
        want = value(mpmath.mpf(ratio), desirable)
        assert loss[index].item() == pytest.approx(float(want), abs=1e-12)
        by_r = mpmath.diff(lambda r, d=desirable: value(r, d), ratio)
        assert slope[index].item() == pytest.approx(float(by_r), abs=1e-12)


def test_a_label_probability_is_the_expectation_over_both_verdicts():
    ratios, good = torch.tensor([1.25, -3.0, 0.5]), torch.tensor([True, False, False])
    p = torch.tensor([0.9, 0.5, 1.0])
    said, other = (kto_loss(ratios, kind, 0.625, **KTO) for kind in (good, ~good))
    found = kto_loss(ratios, good, 0.625, label_probability_K=p, **KTO)
    assert found.tolist() == pytest.approx((p * said + (1 - p) * other).tolist())
    assert found[2] == said[2]


def test_kto_is_finite_far_away_and_lets_no_gradient_into_z0():
    log_ratio = torch.tensor([1e4, -1e4, 1e4, -1e4], requires_grad=True)
    z0 = torch.tensor(0.5, requires_grad=True)
    loss = kto_loss(log_ratio, torch.tensor([True, True, False, False]), z0, **KTO)
    assert loss.tolist() == pytest.approx([0.0, 1.5, 0.75, 0.0])
    slope, into_z0 = torch.autograd.grad(loss.sum(), (log_ratio, z0), allow_unused=True)
    assert slope.isfinite().all()
    assert into_z0 is None


def test_z0_is_a_mean_that_is_never_negative():
    assert kto_z0(6.0, 4) == 1.5
    assert kto_z0(-6.0, 4) == 0.0
    with pytest.raises(TrainError, match="the update has 0"):
        kto_z0(0.0, 0)
