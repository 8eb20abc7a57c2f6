"""Reward losses against 40-digit arithmetic, numeric integrals and their limits."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from agentrl.errors import TrainError
from agentrl.fit.losses.reward_losses import (
    bsr_row_factor,
    bsr_value,
    bt_loss,
    center_term,
    log_expected_sigmoid,
    purm_loss,
)
from agentrl.train.purm import purm_deviation

mpmath.mp.dps = 40


def numbers(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def sig(x):
    return 1 / (1 + mpmath.exp(-x))


CHOSEN, REJECTED = (1.5, -2.0, 0.25, 30.0), (0.5, 1.25, 0.25, -3.0)


@pytest.mark.parametrize("margin", [None, (0.0, 0.5, 2.0, 40.0)])
@pytest.mark.parametrize("label", [None, (1.0, 0.9, 0.5, 0.0)])
def test_bradley_terry_golden_numbers(margin, label):
    chosen, rejected = numbers(*CHOSEN), numbers(*REJECTED)
    loss = bt_loss(
        chosen,
        rejected,
        margin_P=None if margin is None else numbers(*margin).detach(),
        label_probability_P=None if label is None else numbers(*label).detach(),
    )
    slopes = torch.autograd.grad(loss.sum(), (chosen, rejected))
    for index, (c, r) in enumerate(zip(CHOSEN, REJECTED, strict=True)):
        r, m = mpmath.mpf(r), mpmath.mpf(0 if margin is None else margin[index])
        p = mpmath.mpf(1 if label is None else label[index])

        def value(c, r=r, m=m, p=p):
            return -p * mpmath.log(sig(c - r - m)) - (1 - p) * mpmath.log(sig(r + m - c))

        slope = float(mpmath.diff(value, c))
        assert loss[index].item() == pytest.approx(float(value(mpmath.mpf(c))), rel=1e-12)
        assert slopes[0][index].item() == pytest.approx(slope, abs=1e-12)
        assert slopes[1][index].item() == pytest.approx(-slope, abs=1e-12)


def test_bradley_terry_limits():
    """Equal rewards, a margin without end, and certain labels to the last bit."""
    chosen, zero = numbers(0.0), torch.zeros(1, dtype=torch.float64)
    loss = bt_loss(chosen, zero)
    assert loss.item() == math.log(2.0)
    assert torch.autograd.grad(loss.sum(), chosen)[0].item() == -0.5
    loss = bt_loss(chosen, zero, margin_P=zero + 1e6)
    assert loss.item() == 1e6
    assert torch.autograd.grad(loss.sum(), chosen)[0].item() == -1.0
    one, two = numbers(*CHOSEN).detach(), numbers(*REJECTED).detach()
    certain = torch.ones(4, dtype=torch.float64)
    assert torch.equal(bt_loss(one, two, label_probability_P=certain), bt_loss(one, two))
    assert torch.equal(bt_loss(one, two, label_probability_P=certain - 1), bt_loss(two, one))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_rewards_are_finite_and_keep_their_dtype(dtype):
    chosen, rejected = numbers(1e4, -1e4, dtype=dtype), numbers(-1e4, 1e4, dtype=dtype)
    zeros = torch.zeros(2, dtype=dtype)
    heads = torch.stack((chosen, zeros), 1), torch.stack((rejected, zeros), 1)
    double = torch.tensor([0.75, 0.75], dtype=torch.float64)
    losses = {
        "bt": (bt_loss(chosen, rejected), [0.0, 2e4]),
        "soft": (bt_loss(chosen, rejected, label_probability_P=double), [5e3, 1.5e4]),
        "margin": (bt_loss(chosen, rejected, margin_P=double), [0.0, 20_000.75]),
        "purm": (purm_loss(*heads, nodes=32), [0.0, 2e4]),
    }
    for name, (loss, want) in losses.items():
        assert loss.dtype is dtype, name
        assert loss.tolist() == pytest.approx(want, rel=1e-3), name
        (slope,) = torch.autograd.grad(loss.sum(), chosen, retain_graph=True)
        assert slope.isfinite().all(), name


HEADS = [(1.25, -0.5, 0.25, -0.25), (-0.75, -1.5, 1.0, 0.1), (3.0, 0.4, 3.0, 0.2)]


def purm_by_integral(mu_c, raw_c, mu_r, raw_r, *, margin=0, label=1):
    """-p log E sigmoid(z) - (1 - p) log E sigmoid(-z) by numeric integration."""

    def deviation(raw):
        return mpmath.log(1 + mpmath.exp(raw)) + mpmath.mpf("1e-4")

    mean = mpmath.mpf(mu_c) - mu_r - margin
    spread = mpmath.sqrt(deviation(raw_c) ** 2 + deviation(raw_r) ** 2)

    def expectation(sign):
        def density(z):
            return sig(sign * z) * mpmath.npdf(z, mean, spread)

        ends = [mean + spread * k for k in (-12, -6, -3, 0, 3, 6, 12)]
        return mpmath.quad(density, ends)

    right, wrong = mpmath.log(expectation(1)), mpmath.log(expectation(-1))
    return -label * right - (1 - label) * wrong


def heads(*rows: tuple[float, float, float, float]) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.tensor(rows, dtype=torch.float64)
    return whole[:, :2].clone().requires_grad_(), whole[:, 2:].clone().requires_grad_()


@pytest.mark.parametrize("row", HEADS)
def test_purm_is_its_integral(row):
    """Loss to 1e-6 and the slopes by all four outputs of the head."""
    with mpmath.workdps(20):
        want = purm_by_integral(*row)
        slopes = [
            mpmath.diff(lambda x, k=k: purm_by_integral(*row[:k], x, *row[k + 1 :]), row[k])
            for k in range(4)
        ]
    chosen, rejected = heads(row)
    loss = purm_loss(chosen, rejected, nodes=32)
    assert loss.item() == pytest.approx(float(want), abs=1e-6)
    got = torch.autograd.grad(loss.sum(), (chosen, rejected))
    assert torch.cat(got, 1)[0].tolist() == pytest.approx([float(s) for s in slopes], abs=1e-6)


def test_purm_with_margin_and_soft_label_is_its_integral():
    margin, label = numbers(0.5).detach(), numbers(0.75).detach()
    got = purm_loss(*heads(HEADS[0]), nodes=32, margin_P=margin, label_probability_P=label)
    with mpmath.workdps(20):
        want = purm_by_integral(*HEADS[0], margin=mpmath.mpf(0.5), label=mpmath.mpf(0.75))
    assert got.item() == pytest.approx(float(want), abs=1e-6)


def test_purm_without_a_deviation_is_bradley_terry():
    chosen, rejected = numbers(*CHOSEN), numbers(*REJECTED)
    gap = chosen - rejected
    for nodes in (2, 32, 256):
        exact = -log_expected_sigmoid(gap, torch.zeros_like(gap), nodes=nodes)
        want = bt_loss(chosen, rejected)
        assert exact.tolist() == pytest.approx(want.tolist(), abs=1e-13)
        got = torch.autograd.grad(exact.sum(), chosen, retain_graph=True)[0]
        plain = torch.autograd.grad(want.sum(), chosen, retain_graph=True)[0]
        assert got.tolist() == pytest.approx(plain.tolist(), abs=1e-13)


def test_a_head_that_is_sure_is_nearly_bradley_terry():
    raw = torch.full((4,), -1e4, dtype=torch.float64)
    assert purm_deviation(raw).tolist() == [1e-4] * 4
    one, two = numbers(*CHOSEN), numbers(*REJECTED)
    sure = purm_loss(torch.stack((one, raw), 1), torch.stack((two, raw), 1), nodes=32)
    assert sure.tolist() == pytest.approx(bt_loss(one, two).tolist(), abs=1e-7)


def test_uncertainty_pays_where_the_order_is_wrong():
    """Slope by s: down where means disagree with the label, up where they agree."""
    for (mu_c, mu_r), sign in (((-3.0, 0.0), -1), ((3.0, 0.0), 1)):
        chosen, rejected = heads((mu_c, 0.0, mu_r, 0.0))
        loss = purm_loss(chosen, rejected, nodes=32)
        slope = torch.autograd.grad(loss.sum(), chosen)[0][0, 1].item()
        assert slope * sign > 0


def test_center_term():
    assert center_term(numbers(1.0, -2.0), numbers(2.0, 2.0)).tolist() == [9.0, 0.0]


@pytest.mark.parametrize("split", [[4], [1, 3], [2, 1, 1]])
def test_batch_sum_regularisation_in_two_passes(split):
    """The rows' losses have the gradient of F over the whole update, however it is divided."""
    weight, coef = numbers(0.7), 0.3
    features = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    rewards = weight * features + 1.0
    whole = coef * (rewards.sum() / 4) ** 2
    (want,) = torch.autograd.grad(whole, weight)
    total = rewards.detach().sum().item()
    assert bsr_value(total, 4, coef) == pytest.approx(whole.item(), rel=1e-15)
    factor = bsr_row_factor(total, 4, coef)
    got = 0.0
    for part in features.split(split):
        row_loss = (factor * (weight * part + 1.0)).sum()
        got += torch.autograd.grad(row_loss, weight)[0].item()
    assert got == pytest.approx(want.item(), rel=1e-14)


def test_batch_sum_of_nothing_is_refused():
    for formula in (bsr_row_factor, bsr_value):
        with pytest.raises(TrainError, match="an update of 0 rows"):
            formula(0.0, 0, 1.0)
