"""Log-probabilities of more ids from the head: dense values and gradients, and the likeliest."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from agentrl.batch.tensors import TopIds
from agentrl.train.model.head_logprobs import head_numbers

TOKENS, VOCABULARY, WIDTH = 9, 50, 12


def made(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(3)
    hidden = torch.randn(TOKENS, WIDTH, dtype=dtype)
    weight = torch.randn(VOCABULARY, WIDTH, dtype=dtype)
    bias = torch.randn(VOCABULARY, dtype=dtype)
    target = torch.randint(VOCABULARY, (TOKENS,))
    temperature = torch.rand(TOKENS, dtype=torch.float64).to(torch.float32) + 0.5
    return hidden, weight, bias, target, temperature


def ids_with_repeats(target: torch.Tensor) -> torch.Tensor:
    """[A, 4] Every third row names its target; the last one, a masked token, only id 0."""
    ids = torch.stack([torch.randperm(VOCABULARY)[:4] for _ in target])
    ids[::3, 1] = target[::3]
    ids[-1] = 0
    return ids


@pytest.mark.parametrize(("kept", "entropy"), list(product([1 << 30, 1], [False, True])))
def test_values_and_gradients_are_dense(kept: int, entropy: bool) -> None:
    """Against autograd through log_softmax, in one chunk and in many. Fails if an id that is the
    target loses one of its two gradients."""
    hidden, weight, bias, target, temperature = made()
    temperature = temperature.double()
    ids = ids_with_repeats(target)
    factors = torch.randn(TOKENS, 4, dtype=torch.float64)
    factors[-1] = 0.0
    own = torch.randn(2, TOKENS, dtype=torch.float64)
    results = []
    for dense in (True, False):
        leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
        if dense:
            logits = leaves[0] @ leaves[1].T + leaves[2]
            table = torch.log_softmax(logits / temperature[:, None], -1)
            more, chosen = table.gather(1, ids), table.gather(1, target[:, None])[:, 0]
            spread = -(table.exp() * table).sum(-1)
        else:
            found = head_numbers(
                leaves[0], leaves[1], target, bias_V=leaves[2], temperature_A=temperature,
                max_kept_bytes=kept, entropy_gradient=entropy, more_AK=ids,
            )  # fmt: skip
            more, chosen, spread = found.more_AK, found.log_probs_A, found.entropy_A
        loss = (more * factors).sum() + (own[0] * chosen).sum()
        if entropy:
            loss = loss + (own[1] * spread).sum()
        loss.backward()
        results.append([more.detach(), *(leaf.grad for leaf in leaves)])
    for found, want in zip(results[1], results[0], strict=True):
        assert found is not None
        assert want is not None
        assert torch.allclose(found, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("float32", [False, True])
def test_narrow_heads_stay_close(float32: bool) -> None:
    """Fails if columns of named ids are left as they were rounded with the others."""
    hidden, weight, _, target, temperature = made(torch.bfloat16)
    ids = ids_with_repeats(target)
    grads = []
    for dtype in (torch.float64, torch.bfloat16):
        leaf = hidden.to(dtype).requires_grad_()
        found = head_numbers(
            leaf, weight.to(dtype), target, temperature_A=temperature.to(found_kind(dtype)),
            float32_logits=float32, more_AK=ids,
        )  # fmt: skip
        found.more_AK[:-1].sum().backward()
        assert leaf.grad is not None
        grads.append(leaf.grad.double())
    error = (grads[0] - grads[1]).norm() / grads[0].norm()
    assert error < 0.02


def found_kind(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def test_the_likeliest_come_first_and_below_a_bound() -> None:
    hidden, weight, bias, target, _ = made()
    found = head_numbers(hidden, weight, target, bias_V=bias, top=TopIds(k=5, below=40))
    table = torch.log_softmax(hidden @ weight.T + bias, -1)
    best = table[:, :40].topk(5, dim=1)
    assert torch.equal(found.top_ids_AK, best.indices)
    assert torch.allclose(found.top_log_probs_AK, best.values, rtol=0, atol=1e-12)
    assert not found.top_log_probs_AK.requires_grad


def test_the_same_pass_gives_the_same_bits_for_named_and_likeliest() -> None:
    """Policy and teacher of the same weights differ by nothing: one names what the other finds."""
    hidden, weight, _, target, temperature = made(torch.float32)
    top = head_numbers(hidden, weight, target, temperature_A=temperature, top=TopIds(k=6, below=50))
    named = head_numbers(hidden, weight, target, temperature_A=temperature, more_AK=top.top_ids_AK)
    assert torch.equal(named.more_AK, top.top_log_probs_AK)


def test_without_more_ids_nothing_changes() -> None:
    hidden, weight, bias, target, _ = made()
    leaf = hidden.clone().requires_grad_()
    found = head_numbers(leaf, weight, target, bias_V=bias)
    assert found.more_AK.shape == found.top_ids_AK.shape == (TOKENS, 0)
    found.log_probs_A.sum().backward()
    assert leaf.grad is not None


def test_no_token_at_all() -> None:
    """Padding of ranks in step names ids of no token."""
    hidden, weight, _, target, _ = made()
    leaf = weight.clone().requires_grad_()
    ids = torch.zeros((0, 3), dtype=torch.int64)
    found = head_numbers(hidden[:0], leaf, target[:0], more_AK=ids)
    (found.more_AK.sum() + found.log_probs_A.sum()).backward()
    assert leaf.grad is not None
    assert not leaf.grad.any()
