"""The reverse KL over likeliest tokens and a tail: by hand, by autograd, and where nothing is."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl.train.distill.divergence import TAIL_FLOOR, reverse_kl, tail_log_prob

ALL = torch.ones(1, dtype=torch.bool)


def logs(*probs: float) -> torch.Tensor:
    return torch.tensor([probs], dtype=torch.float64).log()


def merged(full_RV: torch.Tensor, ids_RK: torch.Tensor) -> torch.Tensor:
    """[R, K + 1] Probabilities of K tokens and of all others, from those of every token."""
    picked = full_RV.gather(1, ids_RK)
    rest = full_RV.scatter(1, ids_RK, 0.0).sum(-1, keepdim=True)
    return torch.cat([picked, rest], dim=-1)


def test_two_tokens_and_a_tail_by_hand() -> None:
    """p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4): KL = 1/2 log 2 - 1/4 log 2 = log(2) / 4."""
    found = reverse_kl(logs(0.5, 0.25), logs(0.25, 0.5), mask_R=ALL)
    assert float(found.kl_R) == pytest.approx(math.log(2) / 4, abs=1e-15)
    assert float(found.tail_R) == pytest.approx(0.25, abs=1e-15)


def test_a_tail_that_differs_counts() -> None:
    """p = (3/4, tail 1/4), q = (1/4, tail 3/4): KL = log(3) / 2. Fails without the tail's term."""
    found = reverse_kl(logs(0.75), logs(0.25), mask_R=ALL)
    assert float(found.kl_R) == pytest.approx(math.log(3) / 2, abs=1e-15)
    assert float(found.teacher_tail_R) == pytest.approx(0.75, abs=1e-15)


@pytest.mark.parametrize("k", [1, 3, 20, 59])
def test_value_and_gradient_are_those_of_all_logits(k: int) -> None:
    """Against autograd through a dense softmax in float64. Fails if the tail has no gradient."""
    generator = torch.Generator().manual_seed(k)
    student, teacher = (
        torch.randn(7, 61, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    ids_RK = teacher.topk(k).indices
    theirs = torch.log_softmax(teacher, -1)
    mask_R = torch.ones(7, dtype=torch.bool)
    grads = []
    for dense in (True, False):
        logits = student.clone().requires_grad_()
        log_probs = torch.log_softmax(logits, -1)
        if dense:
            own, other = merged(log_probs.exp(), ids_RK), merged(theirs.exp(), ids_RK)
            kl_R = (own * (own.log() - other.log())).sum(-1)
        else:
            kl_R = reverse_kl(
                log_probs.gather(1, ids_RK), theirs.gather(1, ids_RK), mask_R=mask_R
            ).kl_R
        (kl_R * torch.arange(1.0, 8.0, dtype=torch.float64)).sum().backward()
        assert logits.grad is not None
        grads.append((kl_R.detach(), logits.grad))
    (value, grad), (found, own_grad) = grads
    assert torch.allclose(found, value, rtol=0, atol=1e-12)
    assert torch.allclose(own_grad, grad, rtol=0, atol=1e-10)
    assert (found > 0).all()


def test_tokens_that_one_side_cannot_sample() -> None:
    """p = (1/2, 1/4, 1/4), q = (3/4, 0, 1/4): the second token is in the tail, so both have two
    bins of (1/2, 1/2) and (3/4, 1/4). And where the policy has none of a token, its bin is worth 0.
    Fails with NaN, from -inf less -inf or 0 times -inf."""
    own = logs(0.5, 0.25).requires_grad_()
    found = reverse_kl(own, logs(0.75, 0.0), mask_R=ALL)
    assert float(found.kl_R.detach()) == pytest.approx(0.5 * math.log(4 / 3), abs=1e-15)
    assert float(found.tail_R) == pytest.approx(0.5, abs=1e-15)
    assert float(found.teacher_tail_R) == pytest.approx(0.25, abs=1e-15)
    found.kl_R.sum().backward()
    assert own.grad is not None
    # p_1 ((log p_1 - log q_1) - (log p_tail - log q_tail)), and the tail has no log-probability.
    assert own.grad.tolist() == [[pytest.approx(0.5 * math.log(1 / 3)), 0.0]]
    none = logs(0.0, 0.5).requires_grad_()
    kl_R = reverse_kl(none, logs(0.25, 0.5), mask_R=ALL).kl_R
    assert float(kl_R.detach()) == pytest.approx(0.5 * math.log(2), abs=1e-15)
    kl_R.sum().backward()
    assert none.grad is not None
    assert none.grad.isfinite().all()


def test_what_is_no_number_stays_none() -> None:
    """Fails if a broken teacher's NaN goes where -inf goes."""
    theirs = torch.tensor([[math.nan, -1.0]], dtype=torch.float64)
    assert reverse_kl(logs(0.5, 0.25), theirs, mask_R=ALL).kl_R.isnan()


def test_equal_distributions_have_no_gradient_to_the_bit() -> None:
    """Fails if autograd is left to cancel the terms: it leaves about 1e-17."""
    log_probs = torch.log_softmax(
        torch.randn(50, 61, generator=torch.Generator().manual_seed(0)), -1
    )
    own = log_probs[:, :8].clone().requires_grad_()
    kl_R = reverse_kl(own, log_probs[:, :8], mask_R=torch.ones(50, dtype=torch.bool)).kl_R
    kl_R.sum().backward()
    assert own.grad is not None
    assert not own.grad.any()
    assert not kl_R.any()


def test_a_tail_below_the_floor_is_the_floor() -> None:
    """Float32 sums of probabilities reach 1, or pass it: no infinity comes of it."""
    one = torch.zeros(1, 1)
    over = torch.tensor([[math.log(0.5), math.log(0.5) + 1e-6]])
    for log_probs in (one, over):
        assert float(tail_log_prob(log_probs)) == pytest.approx(math.log(TAIL_FLOOR))
    own = one.clone().requires_grad_()
    found = reverse_kl(own, torch.tensor([[math.log(0.5)]]), mask_R=ALL)
    found.kl_R.sum().backward()
    assert float(found.kl_R.detach()) == pytest.approx(math.log(2), abs=2e-5)
    assert own.grad is not None
    # log(1 / (1/2)) - (log floor - log 1/2)
    assert float(own.grad) == pytest.approx(-math.log(TAIL_FLOOR), rel=1e-5)


def test_small_tails_keep_their_digits() -> None:
    """Fails with log(1 - sum) above a half, or with log(-expm1) below it."""
    for tail in (1e-5, 0.3, 0.9, 1 - 1e-9):
        log_probs = torch.tensor([[math.log1p(-tail)]], dtype=torch.float64)
        assert float(tail_log_prob(log_probs)) == pytest.approx(math.log(tail), rel=1e-12)


def test_masked_positions_hold_anything() -> None:
    """Fails if the mask comes after the first exp or product."""
    mask_R = torch.tensor([True, False, True, False])
    clean = torch.log_softmax(torch.randn(4, 9, generator=torch.Generator().manual_seed(1)), -1)
    teacher = torch.log_softmax(torch.randn(4, 9, generator=torch.Generator().manual_seed(2)), -1)
    outcomes = []
    for rubbish in (0.0, math.nan, math.inf, 1e4):
        own, theirs = clean[:, :3].clone(), teacher[:, :3].clone()
        own[~mask_R], theirs[~mask_R] = rubbish, rubbish
        own.requires_grad_()
        kl_R = reverse_kl(own, theirs, mask_R=mask_R).kl_R
        kl_R.sum().backward()
        assert own.grad is not None
        outcomes.append((kl_R.detach(), own.grad))
    for kl_R, grad in outcomes[1:]:
        assert torch.equal(kl_R, outcomes[0][0])
        assert torch.equal(grad, outcomes[0][1])
