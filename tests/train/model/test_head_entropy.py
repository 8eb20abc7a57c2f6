"""The gradient through the entropy of the head is that of the dense formula, on every path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.train.model import head_logprobs
from agentrl.train.model.head_logprobs import head_log_probs

TOKENS, VOCABULARY, WIDTH = 23, 37, 8
ROW = VOCABULARY * 8
PATHS = {
    "kept": {},
    "chunks": {"max_kept_bytes": 5 * ROW},
    "a row at a time": {"max_kept_bytes": 1},
    "formed": {"guess": 1.0},
    "formed, times three": {"guess": 1 / 3},
    "formed, wrong": {"guess": "wrong"},
}


def inputs(dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor, Tensor]:
    """Leaves (hidden states, weight, bias), targets and temperatures."""
    torch.manual_seed(0)
    shapes = ((TOKENS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    leaves = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    target = torch.randint(0, VOCABULARY, (TOKENS,))
    return leaves, target, torch.rand(TOKENS, dtype=torch.float64) + 0.5


def dense(leaves: list[Tensor], target: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    hidden, weight, bias = leaves
    log_probs = torch.log_softmax((hidden @ weight.t() + bias) / temperature[:, None], -1)
    entropy = torch.special.entr(log_probs.exp()).sum(-1)
    return log_probs[torch.arange(len(target)), target], entropy


def gradients(
    leaves: list[Tensor], target: Tensor, temperature: Tensor, upstream: Tensor, **given: Any
) -> list[Tensor]:
    """Of `upstream[0] * log_probs + upstream[1] * entropy`, summed."""
    guess = given.pop("guess", None)
    if guess is not None:
        wrong = torch.arange(2 * TOKENS, dtype=torch.float64).reshape(2, TOKENS)
        told = wrong if guess == "wrong" else upstream * guess
        given["gradient_of"] = lambda part, *_: told[:, part]
    hidden, weight, bias = leaves
    found = head_log_probs(
        hidden, weight, target, bias_V=bias, temperature_A=temperature, entropy_gradient=True,
        **given,
    )  # fmt: skip
    return list(torch.autograd.grad(found, leaves, list(upstream.to(found[0].dtype))))


@pytest.fixture
def formed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_logprobs, "FORMED_BYTES", 5 * ROW)


@pytest.mark.usefixtures("formed")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("of", ["both", "entropy alone", "log-probability alone"])
def test_the_gradient_is_that_of_the_dense_formula(path: str, of: str) -> None:
    # Fails without H in p (log p + H), or if a temperature divides only one of the two terms.
    leaves, target, temperature = inputs()
    upstream = torch.randn(2, TOKENS, dtype=torch.float64)
    upstream[0] *= of != "entropy alone"
    upstream[1] *= of != "log-probability alone"
    want = torch.autograd.grad(dense(leaves, target, temperature), leaves, list(upstream))
    got = gradients(leaves, target, temperature, upstream, **PATHS[path])
    for ours, theirs in zip(got, want, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-10 * float(theirs.abs().max())


@pytest.mark.parametrize("way", ["kept", "formed"])
def test_a_loss_of_the_entropy_alone_has_a_gradient(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    leaves, target, temperature = inputs()
    (hidden, weight, bias), given = leaves, {}
    if way == "formed":
        monkeypatch.setattr(head_logprobs, "FORMED_BYTES", 5 * ROW)
        given["gradient_of"] = lambda part, *_: torch.tensor([[0.0], [1.0]]).expand(
            2, part.stop - part.start
        )
    _, entropy = head_log_probs(
        hidden, weight, target, bias_V=bias, temperature_A=temperature, entropy_gradient=True,
        **given,
    )  # fmt: skip
    got = torch.autograd.grad(entropy.sum(), leaves)
    want = torch.autograd.grad(dense(leaves, target, temperature)[1].sum(), leaves)
    for ours, theirs in zip(got, want, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_it_is_asked_for() -> None:
    (hidden, weight, _), target, _ = inputs()
    assert not head_log_probs(hidden, weight, target)[1].requires_grad
    assert head_log_probs(hidden, weight, target, entropy_gradient=True)[1].requires_grad


@pytest.mark.usefixtures("formed")
@pytest.mark.parametrize("path", ["kept", "chunks", "formed", "formed, wrong"])
def test_log_probabilities_have_the_gradient_that_they_had(path: str) -> None:
    leaves, target, temperature = inputs()
    upstream = torch.randn(2, TOKENS, dtype=torch.float64)
    upstream[1] = 0.0
    hidden, weight, bias = leaves
    plain, _ = head_log_probs(hidden, weight, target, bias_V=bias, temperature_A=temperature)
    want = torch.autograd.grad(plain, leaves, upstream[0])
    got = gradients(leaves, target, temperature, upstream, **PATHS[path])
    for ours, theirs in zip(got, want, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-13, atol=1e-14)


@pytest.mark.usefixtures("formed")
@pytest.mark.parametrize("float32_logits", [False, True])
@pytest.mark.parametrize("path", ["kept", "chunks", "formed"])
def test_in_bfloat16_it_is_near(path: str, float32_logits: bool) -> None:
    leaves, target, temperature = inputs(torch.bfloat16)
    upstream = torch.randn(2, TOKENS, dtype=torch.float64)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    want = torch.autograd.grad(dense(exact, target, temperature), exact, list(upstream))
    got = gradients(
        leaves, target, temperature, upstream, float32_logits=float32_logits, **PATHS[path]
    )
    for ours, theirs in zip(got, want, strict=True):
        assert float((ours.double() - theirs).norm() / theirs.norm()) < 0.02


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_certain_and_impossible_tokens_have_a_finite_gradient(dtype: torch.dtype) -> None:
    # 0 * log 0 is a NaN in the plain formula.
    (hidden, weight, bias), target, _ = inputs(dtype)
    leaves = [(hidden * 400).detach().requires_grad_(), weight, bias]
    hidden, weight, bias = leaves
    log_probs, entropy = head_log_probs(hidden, weight, target, bias_V=bias, entropy_gradient=True)
    assert bool((entropy < 1e-6).any())
    for grad in torch.autograd.grad((log_probs.sum(), entropy.sum()), leaves):
        assert bool(torch.isfinite(grad).all())


def test_no_token_at_all_has_a_gradient_of_zero() -> None:
    (hidden, weight, bias), target, _ = inputs()
    found = head_log_probs(hidden[:0], weight, target[:0], bias_V=bias, entropy_gradient=True)
    grads = torch.autograd.grad(found[0].sum() + found[1].sum(), (weight, bias))
    assert not any(bool(grad.any()) for grad in grads)


def test_a_step_against_the_gradient_raises_the_entropy() -> None:
    leaves, target, temperature = inputs()
    hidden, weight, bias = leaves

    def mean(used: Tensor) -> Tensor:
        return head_log_probs(
            hidden, used, target, bias_V=bias, temperature_A=temperature, entropy_gradient=True
        )[1].mean()

    before = mean(weight)
    (slope,) = torch.autograd.grad(-before, weight)
    assert float(mean(weight.detach() - 0.1 * slope).detach()) > float(before.detach())
