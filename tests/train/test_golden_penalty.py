"""The KL penalty and the decoupled objective against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_llama import tiny_model

from agentrl.batch.tensors import TensorBatch
from agentrl.config.schema import AlgorithmSection, TrainSection
from agentrl.errors import TrainError
from agentrl.train.logprobs import TokenLogProbs
from agentrl.train.losses import kl_loss, policy_loss, sampler_importance
from agentrl.train.objective import FixedLogProbs, objective
from agentrl.train.trainer import Trainer


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def penalty(differences, *, estimator, weights=None, mask=None, kl_coef=1.0):
    """Loss, gradient by log-prob and metrics for tokens with these lp - lp_ref."""
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
    return result.loss.item(), log_probs.grad.tolist(), result.metrics.result()


@pytest.mark.parametrize(
    ("estimator", "difference", "value", "slope"),
    [
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
    ],
)
def test_one_token_of_penalty(estimator, difference, value, slope):
    got, (gradient,), _ = penalty([difference], estimator=estimator)
    assert got == pytest.approx(value, rel=1e-12, abs=1e-15)
    assert gradient == pytest.approx(slope, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_penalty_has_the_weights_of_the_loss_and_the_metric_is_k3(estimator):
    ln2 = math.log(2)
    got, gradient, metrics = penalty(
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
    assert metrics == {"kl": pytest.approx(sum(k3) / 2)}


@pytest.mark.parametrize(("estimator", "own"), [("k2", True), ("k3", False)])
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


def test_importance_by_hand():
    old = doubles(-1.0, -2.0, -60.0, float("nan"))
    rollout = doubles(-1.0 - math.log(2), -2.0 + math.log(4), -2.0, 0.0)
    mask = torch.tensor([True, True, True, False])
    got = sampler_importance(old, rollout, mask)
    # 2, 1/4, clamped at exp(-20). Fails with the quotient turned, and without the clamp.
    assert got.tolist() == pytest.approx([2.0, 0.25, math.exp(-20), 1.0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (1.25, 1.0, -2.5, -2.5),
        (1.5, 1.0, -2.56, 0.0),  # clipped by the ratio to the old policy, then weighted
        (1.5, -1.0, 3.0, 3.0),
    ],
)
def test_the_importance_weight_multiplies_what_was_clipped(ratio, advantage, value, slope):
    """w = 2 beside a ratio to the old policy. Fails if w is clipped along with the ratio.

    rho w = 2.5 would be far outside the bounds 0.8 and 1.28, so a ratio taken to the sampler is
    clipped in the first case.
    """
    log_probs = doubles(math.log(ratio) - 2.0).requires_grad_()
    weight = torch.full((1,), 2.0, dtype=torch.float64, requires_grad=True)
    result = policy_loss(
        log_probs,
        old_log_probs_R=doubles(-2.0),
        advantages_R=doubles(advantage),
        weights_R=doubles(1.0),
        mask_R=torch.tensor([True]),
        eps_clip_low=0.2,
        eps_clip_high=0.28,
        importance_R=weight.detach(),
    )
    result.loss.backward()
    assert result.loss.item() == pytest.approx(value)
    assert log_probs.grad is not None
    assert log_probs.grad.item() == pytest.approx(slope)
    # F4 judges the ratio to the old policy alone.
    assert result.metrics.result()["train/ratio_mean"] == pytest.approx(ratio)


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
    log_probs = doubles(-1.0).requires_grad_()
    index = torch.tensor([0])
    result = objective(
        TokenLogProbs(log_probs_R=log_probs, entropy_R=doubles(1.0)),
        TensorBatch(
            lengths=(2,),
            input_ids_T=index,
            position_ids_T=index,
            source_A=index,
            target_A=index,
            index_A=index,
            temperature_A=None,
            mask_R=torch.tensor([True]),
            sampled_R=torch.tensor([True]),
            sequence_R=torch.tensor([0]),
            num_sequences=1,
            rollout_log_probs_R=doubles(-1.5),
            advantages_R=doubles(2.0),
            weights_R=doubles(0.5),
        ),
        FixedLogProbs(old_R=doubles(-1.1)),
        algorithm=AlgorithmSection(old_log_probs=base).resolved(horizon=4),
        compare_sampler=True,
    )
    result.loss.backward()
    assert result.loss.item() == pytest.approx(value, rel=1e-12)
    assert log_probs.grad is not None
    assert log_probs.grad.item() == pytest.approx(slope, rel=1e-12)
    # F25 compares the policy before the step with the sampler, not what it has become since.
    metrics = result.metrics.result()
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(0.4)


def test_importance_carries_no_gradient():
    old = doubles(-1.0, -2.0).requires_grad_()
    got = sampler_importance(old, doubles(-1.5, -2.5), torch.tensor([True, True]))
    assert not got.requires_grad


def test_a_penalty_without_a_reference_is_refused_when_the_trainer_is_made():
    section = AlgorithmSection(kl_coef=0.25).resolved(horizon=4)
    with pytest.raises(TrainError, match=r"kl_coef is 0\.25.*no reference"):
        Trainer(tiny_model(torch.float32), train=TrainSection(), algorithm=section)
