"""Packed attention and the chunked head against the plain formulas."""

from __future__ import annotations

import pytest
import torch

from agentrl.batch.tensors import to_tensors
from agentrl.errors import TrainError
from agentrl.train.model import head_logprobs
from agentrl.train.model.attention import (
    ATTENTION,
    _packed_rows,
    fused_attention,
    packed_attention,
)
from agentrl.train.model.cpu_rows import CpuRows
from agentrl.train.model.head_logprobs import head_log_probs
from agentrl.train.model.logprobs import packed_log_probs
from agentrl.train.model.segments import Segments
from tests.train.tiny_llama import make_groups, make_step, tiny_model


def head_inputs(dtype=torch.float64, tokens=23, vocabulary=37):
    torch.manual_seed(0)
    hidden = torch.randn(tokens, 8, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocabulary, 8, dtype=dtype, requires_grad=True)
    bias = torch.randn(vocabulary, dtype=dtype, requires_grad=True)
    target = torch.randint(0, vocabulary, (tokens,))
    temperature = torch.rand(tokens, dtype=torch.float64) + 0.5
    return hidden, weight, bias, target, temperature


@pytest.mark.parametrize("kept", [1 << 20, 37 * 8 * 5, 1])
@pytest.mark.parametrize("warm", [True, False])
def test_head_is_log_softmax_whatever_the_chunks(kept, warm):
    # 1 << 20 keeps all probabilities, 5 rows a chunk, one row a chunk.
    hidden, weight, bias, target, temperature = head_inputs()
    at = temperature if warm else None
    got, entropy = head_log_probs(
        hidden, weight, target, bias_V=bias, temperature_A=at, max_kept_bytes=kept
    )
    logits = (hidden @ weight.t() + bias) / (temperature[:, None] if warm else 1.0)
    logp = torch.log_softmax(logits, -1)
    assert torch.allclose(got, logp[torch.arange(23), target], rtol=1e-13)
    assert torch.allclose(entropy, -(logp.exp() * logp).sum(-1), rtol=1e-13)
    assert not entropy.requires_grad
    upstream = torch.randn(23, dtype=torch.float64)
    ours = torch.autograd.grad(got, (hidden, weight, bias), upstream)
    theirs = torch.autograd.grad(logp[torch.arange(23), target], (hidden, weight, bias), upstream)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("guess", ["right", "times three", "wrong", "not finite"])
def test_a_gradient_formed_in_the_forward_pass_is_the_one_asked_for(monkeypatch, dtype, guess):
    """Fails if a guess is taken without looking at what the backward pass brings."""
    monkeypatch.setattr(head_logprobs, "FORMED_BYTES", 37 * 8 * 5)
    hidden, weight, bias, target, temperature = head_inputs(dtype)
    upstream = torch.randn(23, dtype=torch.float64)
    seen = []

    def gradient_of(part, log_probs, entropy):
        seen.append((part.start, part.stop, log_probs.clone(), entropy.clone()))
        wrong = {"right": 1.0, "times three": 3.0, "not finite": torch.inf}
        return upstream[part] * wrong.get(guess, torch.arange(part.start, part.stop))

    def gradients(**given):
        got, entropy = head_log_probs(
            hidden, weight, target, bias_V=bias, temperature_A=temperature, **given
        )
        return (
            got,
            entropy,
            torch.autograd.grad(got, (hidden, weight, bias), upstream.to(got.dtype)),
        )

    got, entropy, ours = gradients(gradient_of=gradient_of)
    want, want_entropy, theirs = gradients()
    tolerance = 1e-11 if dtype == torch.float64 else 0.02
    for mine, other in zip((got, entropy, *ours), (want, want_entropy, *theirs), strict=True):
        assert mine.dtype == other.dtype
        assert torch.allclose(mine, other, rtol=tolerance, atol=tolerance)
    assert [end for _, end, *_ in seen][-1] == 23
    assert len(seen) > 1
    assert torch.equal(torch.cat([log_probs for *_, log_probs, _ in seen]), got.detach())


def test_nothing_is_formed_where_no_gradient_is_wanted():
    hidden, weight, _, target, _ = head_inputs()

    def gradient_of(*_):
        raise AssertionError("asked for a gradient")

    with torch.no_grad():
        head_log_probs(hidden, weight, target, gradient_of=gradient_of)


def test_head_in_bfloat16_gives_float32_and_survives_certainty():
    hidden, weight, _, target, _ = head_inputs(torch.bfloat16)
    got, entropy = head_log_probs(hidden * 200, weight, target)
    assert got.dtype == entropy.dtype == torch.float32
    assert torch.isfinite(got).all()
    assert (entropy >= 0).all()


def test_head_without_a_trained_token():
    hidden, weight, _, target, _ = head_inputs()
    got, _ = head_log_probs(hidden[:0], weight, target[:0])
    got.sum().backward()
    assert got.shape == (0,)


@pytest.mark.parametrize("lengths", [(300, 1, 129), (128, 128), (5,)])
def test_cpu_rows_are_exact_causal_attention(lengths):
    # Blocks of 128 queries: one short, exact and over. Fails if a block's mask is not shifted to
    # its last keys, or if grouped heads are folded in the wrong order.
    torch.manual_seed(0)
    total = sum(lengths)
    query = torch.randn(1, total, 6, 8, dtype=torch.float64).transpose(1, 2).requires_grad_()
    key = torch.randn(1, total, 2, 8, dtype=torch.float64).transpose(1, 2).requires_grad_()
    value = torch.randn(1, total, 2, 8, dtype=torch.float64).transpose(1, 2).requires_grad_()
    rows = Segments.of_rows(lengths)
    ours = CpuRows.apply(query, key, value, rows, None, 0.3)
    theirs = fused_attention(query, key, value, rows, None, 0.3)
    assert torch.allclose(ours, theirs, rtol=1e-12)
    upstream = torch.randn_like(theirs)
    inputs = (query, key, value)
    pairs = zip(
        torch.autograd.grad(ours, inputs, upstream),
        torch.autograd.grad(theirs, inputs, upstream),
        strict=True,
    )
    for mine, other in pairs:
        assert torch.allclose(mine, other, rtol=1e-10, atol=1e-12)


def test_a_sliding_window_is_kept():
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 1, 6, 4, dtype=torch.float64) for _ in range(3))
    module = torch.nn.Identity()
    got, _ = _packed_rows(
        module,
        query,
        key,
        value,
        None,
        scaling=1.0,
        sliding_window=2,
        segments=Segments.of_rows([6]),
    )
    scores = (query @ key.transpose(2, 3))[0, 0]
    near = torch.ones(6, 6).tril().triu(-1).bool()
    want = torch.softmax(scores.masked_fill(~near, -torch.inf), -1) @ value[0, 0]
    assert torch.allclose(got[0, :, 0], want)


def test_attention_refuses_what_it_would_compute_wrongly():
    tensors = [torch.zeros(1, 1, 2, 4)] * 3
    with pytest.raises(TrainError, match="position_bias"):
        _packed_rows(
            torch.nn.Identity(), *tensors, None, position_bias=30.0, segments=Segments.of_rows([2])
        )
    with pytest.raises(TrainError, match="cannot be packed"):
        _packed_rows(torch.nn.Identity(), *tensors, None)


def test_the_engines_attention_comes_back():
    model = tiny_model()
    before = model.config._attn_implementation
    with packed_attention(model):
        assert model.config._attn_implementation == ATTENTION
    assert model.config._attn_implementation == before != ATTENTION


def test_gradient_checkpointing_and_untied_heads_give_the_same_numbers():
    model = tiny_model(tied=False)
    (micro, *_) = make_step(make_groups()).updates[0].micro_batches
    batch = to_tensors(micro, device=torch.device("cpu"), dtype=torch.float64)

    def run():
        model.zero_grad()
        with packed_attention(model):
            out = packed_log_probs(model, batch)
            out.log_probs_R.sum().backward()
        return out.log_probs_R.detach(), [p.grad.clone() for p in model.parameters()]

    plain, plain_gradient = run()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    again, again_gradient = run()
    assert torch.equal(plain, again)
    assert all(map(torch.equal, plain_gradient, again_gradient))
    assert (plain[~batch.mask_R] == 0).all()
