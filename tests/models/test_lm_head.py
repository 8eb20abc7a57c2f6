"""Float32 logits of bfloat16 heads, in the engine and in the trainer."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch import nn

from agentrl.batch.tensors import to_tensors
from agentrl.config.fleet import EmbeddedServing
from agentrl.models.lm_head import (
    float32_logits,
    float32_product,
    has_float32_head,
    use_float32_head,
)
from agentrl.serving.embedded import EmbeddedEngine
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.head_logprobs import head_log_probs
from agentrl.train.model.logprobs import hidden_states, packed_log_probs
from agentrl.types import SamplingParams
from tests.train.tiny_llama import VOCABULARY, make_groups, make_step, tiny_model


def exact_log_probs(hidden, weight, bias, target, temperature):
    logits = hidden.double() @ weight.double().t() + bias.double()
    if temperature is not None:
        logits = logits / temperature[:, None]
    return logits.log_softmax(-1).gather(1, target[:, None])[:, 0]


@pytest.mark.parametrize("tokens", [1, 2, 7, 32, 300])
@pytest.mark.parametrize("vocabulary", [61, 1000, 8192])
def test_logits_are_not_rounded(tokens, vocabulary):
    """Fails if a kernel for some shape rounds before it subtracts."""
    torch.manual_seed(tokens)
    head = nn.Linear(96, vocabulary).to(torch.bfloat16).requires_grad_(False)
    hidden = (8 * torch.randn(tokens, 96)).to(torch.bfloat16)
    exact = hidden.double() @ head.weight.double().t() + head.bias.double()
    got = float32_logits(hidden, head)
    assert got.dtype == torch.float32
    bound = 2.0**-16 * float(exact.abs().max())
    assert float((got - exact).abs().max()) < bound
    assert float((head(hidden) - exact).abs().max()) > 20 * bound


def test_two_products_are_used_where_the_processor_rounds_once():
    """On a processor of another kind a cast gives the same numbers, and this says nothing."""
    hidden, weight = torch.ones(64, 64).bfloat16(), torch.ones(256, 64).bfloat16()
    product, rest = float32_product(hidden, weight)
    assert product.dtype == (torch.float32 if rest is None else torch.bfloat16)
    tiny, rest = float32_product(hidden[:1, :8], weight[:9, :8])
    assert rest is None
    assert tiny.dtype == torch.float32


@pytest.mark.parametrize("kept", [1 << 30, 1 << 17])
@pytest.mark.parametrize("forms", [True, False])
def test_gradients_of_a_float32_head(monkeypatch, kept, forms):
    """Kept, in chunks and formed: nearer to float64 than with rounded logits."""
    monkeypatch.setattr("agentrl.train.model.head_logprobs.FORMED_BYTES", 1 << 17)
    torch.manual_seed(0)
    hidden = (6 * torch.randn(100, 64)).bfloat16()
    weight, bias = torch.randn(2000, 64).mul_(0.3).bfloat16(), torch.randn(2000).bfloat16()
    target, upstream = torch.randint(0, 2000, (100,)), torch.randn(100)
    temperature = torch.rand(100) + 0.5
    inputs = [part.double().requires_grad_() for part in (hidden, weight, bias)]
    exact = exact_log_probs(*inputs, target, temperature.double())
    wanted = torch.autograd.grad((exact * upstream.double()).sum(), inputs)
    off = {}
    for float32 in (False, True):
        leaves = [part.clone().requires_grad_() for part in (hidden, weight, bias)]
        got, _ = head_log_probs(
            leaves[0],
            leaves[1],
            target,
            bias_V=leaves[2],
            temperature_A=temperature,
            max_kept_bytes=kept,
            gradient_of=(lambda part, *_: upstream[part]) if forms else None,
            float32_logits=float32,
        )
        found = torch.autograd.grad((got * upstream).sum(), leaves)
        errors = [
            float((a.double() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)
        ]
        off[float32] = [float((got - exact).detach().abs().mean()), *errors]
    assert off[True][0] < 5e-4 < 3e-2 < off[False][0]
    assert max(off[True][1:]) < 6e-3
    assert min(off[False][1:]) > 2 * max(off[True][1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_wide_head_is_computed_as_ever(dtype):
    torch.manual_seed(0)
    hidden, weight = torch.randn(40, 16, dtype=dtype), torch.randn(70, 16, dtype=dtype)
    target = torch.randint(0, 70, (40,))
    runs = []
    for float32 in (False, True):
        leaf = hidden.clone().requires_grad_()
        got, entropy = head_log_probs(leaf, weight, target, float32_logits=float32)
        got.sum().backward()
        runs.append((got.detach(), entropy, leaf.grad))
    assert all(map(torch.equal, *runs))


@pytest.mark.parametrize("tied", [True, False])
def test_the_trainer_follows_its_weights(tied):
    """Fails if a copy of the head outlives a change of the weights, or of a tied embedding."""
    model = tiny_model(torch.bfloat16, tied=tied)
    use_float32_head(model)
    (micro, *_) = make_step(make_groups()).updates[0].micro_batches
    batch = to_tensors(micro, device=torch.device("cpu"), dtype=torch.float32)
    weight = (model.model.embed_tokens if tied else model.lm_head).weight
    for _ in range(2):
        with torch.no_grad(), packed_attention(model):
            got = packed_log_probs(model, batch).log_probs_R[batch.index_A]
            hidden = hidden_states(model, batch)[batch.source_A]
        temperature = None if batch.temperature_A is None else batch.temperature_A.double()
        zeros = torch.zeros(VOCABULARY)
        want = exact_log_probs(hidden, weight.detach(), zeros, batch.target_A, temperature)
        assert float((got - want).abs().max()) < 1e-4
        with torch.no_grad():
            weight += 0.3 * torch.randn_like(weight)


def test_the_engine_rounds_nothing_behind_hidden_states_and_follows_the_weights():
    """One token after a prompt, from the hidden states of the engine's own pass."""
    torch.manual_seed(0)
    model = tiny_model(torch.bfloat16)
    prompt = list(range(3, 20))
    passes: list[torch.Tensor] = []
    model.model.register_forward_hook(lambda _, given, out: passes.append(out.last_hidden_state))

    def run() -> tuple[int, float, torch.Tensor]:
        async def ask():
            engine = EmbeddedEngine(
                model,
                section=EmbeddedServing(max_batch_size=2),
                max_prefill=64,
                max_context_tokens=64,
            )
            passes.clear()  # those that compared its model with itself
            try:
                return await engine.generate(
                    prompt, SamplingParams(max_tokens=1, seed=3), session_id="one"
                )
            finally:
                await engine.close()

        got = asyncio.run(ask())
        with torch.no_grad():
            hidden = passes[0][0, len(prompt) - 1 : len(prompt)]
            exact = (hidden.double() @ model.lm_head.weight.double().t()).log_softmax(-1)
        return got.ids[0], got.log_probs[0], exact[0]

    token, rounded, exact = run()
    off = abs(rounded - float(exact[token]))
    use_float32_head(model)
    assert has_float32_head(model)
    for _ in range(2):
        token, log_prob, exact = run()
        assert abs(log_prob - float(exact[token])) < 3e-5
        with torch.no_grad():
            model.model.embed_tokens.weight += 0.2 * torch.randn(VOCABULARY, 32)
    assert off > 1e-4
