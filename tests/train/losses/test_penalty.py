"""The KL penalty and the decoupled objective against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl.config.schema import AlgorithmSection, TrainSection
from agentrl.errors import TrainError
from agentrl.train.losses.penalty import kl_loss
from agentrl.train.trainer import Trainer
from tests.train.losses.loss_parts import evaluate
from tests.train.tiny_llama import tiny_model


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def penalty(differences, *, estimator, weights=None, mask=None, kl_coef=1.0):
    """Loss, gradient by log-prob and measured k3 for tokens with these lp - lp_ref."""
    log_probs = doubles(*(d - 3.0 for d in differences)).requires_grad_()
    size = len(differences)
    result = kl_loss(
        log_probs,
        ref_log_probs_R=torch.full((size,), -3.0, dtype=torch.float64),
        weights_R=doubles(*(weights or [1.0] * size)),
        mask_R=torch.tensor(mask or [True] * size),
        kl_coef=kl_coef,
        estimator=estimator,
    )
    result.loss.backward()
    assert log_probs.grad is not None
    return result.loss.item(), log_probs.grad.tolist(), result.value_R.tolist()


@pytest.mark.parametrize(
    ("estimator", "difference", "value", "slope"),
    [
        ("k1", -0.5, -0.5, 1.0),
        # k2 = d^2 / 2, slope d.
        ("k2", 0.5, 0.125, 0.5),
        ("k2", -0.5, 0.125, -0.5),
        ("k2", 30.0, 450.0, 30.0),
        # k3 = exp(-d) - 1 + d, slope 1 - exp(-d). At d = ln 2: 1/2 - 1 + ln 2 and 1/2.
        ("k3", math.log(2), math.log(2) - 0.5, 0.5),
        # At d = -ln 2: 2 - 1 - ln 2 and -1. Fails with d the other way round (first case, too).
        ("k3", -math.log(2), 1.0 - math.log(2), -1.0),
        ("k3", 0.0, 0.0, 0.0),
        # Beyond the clamp: finite, without gradient.
        ("k3", -50.0, math.exp(20) - 21.0, 0.0),
        ("k3", 50.0, math.exp(-20) + 19.0, 0.0),
        # The value of k3, the slope of k2. Fails (slope 1/2) without the straight-through term.
        ("k3+", math.log(2), math.log(2) - 0.5, math.log(2)),
        ("k3+", -math.log(2), 1.0 - math.log(2), -math.log(2)),
    ],
)
def test_one_token_of_penalty(estimator, difference, value, slope):
    got, (gradient,), _ = penalty([difference], estimator=estimator)
    assert got == pytest.approx(value, rel=1e-12, abs=1e-15)
    assert gradient == pytest.approx(slope, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_penalty_has_the_weights_of_the_loss_and_is_measured_as_k3(estimator):
    ln2 = math.log(2)
    got, gradient, measured = penalty(
        [ln2, -ln2, 9.0],
        estimator=estimator,
        weights=[0.5, 0.25, 4.0],
        mask=[True, True, False],
        kl_coef=0.1,
    )
    k2, k3 = (ln2**2 / 2, ln2**2 / 2), (ln2 - 0.5, 1.0 - ln2)
    used = k2 if estimator == "k2" else k3
    assert got == pytest.approx(0.1 * (0.5 * used[0] + 0.25 * used[1]))
    assert gradient[2] == 0.0
    # Whatever is in the loss, and unweighted. Fails if the weights of the loss leak into it.
    assert measured == pytest.approx([*k3, 0.0])


@pytest.mark.parametrize(("estimator", "own"), [("k2", True), ("k3+", True), ("k3", False)])
def test_which_divergence_the_gradient_of_an_estimator_is_that_of(estimator, own):
    """The docstring's claim, in expectation over the whole vocabulary of a softmax.

    Fails if the estimators are mixed up: k2's expected gradient is that of KL(policy | reference),
    k3's that of KL(reference | policy).
    """
    torch.manual_seed(0)
    logits = torch.randn(7, dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.randn(7, dtype=torch.float64), -1)
    policy = torch.log_softmax(logits, -1)
    result = kl_loss(
        policy,
        ref_log_probs_R=reference,
        weights_R=policy.detach().exp(),
        mask_R=torch.ones(7, dtype=torch.bool),
        kl_coef=1.0,
        estimator=estimator,
    )
    (got,) = torch.autograd.grad(result.loss, logits, retain_graph=True)
    first, second = (policy, reference) if own else (reference, policy)
    (want,) = torch.autograd.grad((first.exp() * (first - second)).sum(), logits)
    assert torch.allclose(got, want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("base", "value", "slope"),
    [
        # One token: now -1, before the step -1.1, sampler -1.5; A = 2, weight 1/2.
        ("rollout", -1.2, 0.0),  # ratio exp(0.5), clipped
        ("recompute", -math.exp(0.1), -math.exp(0.1)),
        ("decoupled", -math.exp(0.4) * math.exp(0.1), -math.exp(0.4) * math.exp(0.1)),
    ],
)
def test_which_policies_a_token_is_measured_against(base, value, slope):
    """Fails if w is taken to the policy at hand, exp(0.5), which would move with every update."""
    got = evaluate(
        AlgorithmSection(old_log_probs=base).resolved(horizon=4),
        now=[-1.0],
        old=[-1.1],
        rollout=[-1.5],
        advantages=[2.0],
        weights=[0.5],
    )
    assert got.loss == pytest.approx(value, rel=1e-12)
    assert got.slopes == pytest.approx([slope], rel=1e-12)
    # F25 compares the policy before the step with the sampler, not what it has become since.
    assert got.metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("changes", "has_term"),
    [
        ({"use_kl_loss": True}, True),
        ({"preset": "ppo"}, False),
        ({"preset": "ppo", "use_kl_loss": True, "kl_estimator": "k2"}, True),
    ],
)
def test_the_penalty_is_in_the_loss_or_in_the_reward(changes, has_term):
    """d = ln 2; fails if a penalty of the reward is in the loss once more."""
    algorithm = AlgorithmSection(kl_coef=0.5, **changes).resolved(horizon=4)
    got = evaluate(algorithm, now=[-1.0], ref=[-1.0 - math.log(2)], advantages=[0.0], kl_coef=0.25)
    k2, k3 = math.log(2) ** 2 / 2, math.log(2) - 0.5
    used = k2 if algorithm.kl_estimator == "k2" else k3
    # The weight is that of the controller, 0.25, not that of the config.
    assert got.loss == pytest.approx(0.25 * used if has_term else 0.0)
    assert got.metrics.get("kl") == (pytest.approx(k3) if has_term else None)


def test_a_penalty_in_the_loss_needs_the_numbers_of_a_reference():
    algorithm = AlgorithmSection(kl_coef=0.5).resolved(horizon=4)
    with pytest.raises(TrainError, match=r"kl_coef is 0\.5.*no log-probabilities"):
        evaluate(algorithm, now=[-1.0], advantages=[0.0])


def test_a_penalty_without_a_reference_is_refused_when_the_trainer_is_made():
    section = AlgorithmSection(kl_coef=0.25).resolved(horizon=4)
    with pytest.raises(TrainError, match=r"kl_coef is 0\.25.*no reference"):
        Trainer(tiny_model(torch.float32), train=TrainSection(), algorithm=section)
