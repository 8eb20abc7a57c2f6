"""A token and its log-probability do not hang on what is computed beside it, to the bit."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.config.fleet import EmbeddedServing
from agentrl.serving.embedded import EmbeddedEngine
from agentrl.serving.embedded.forward import least_rows
from agentrl.serving.embedded.sampling import TokenDraw, sample
from agentrl.types import SamplingParams

VOCAB = 131
CONTEXT = 420
PROMPTS = (3, 70, 250, 370)
"""Tokens of the prompts of the groups."""
SIBLINGS = 3

Turn = tuple[tuple[int, ...], tuple[float, ...]]


def llama(dtype: torch.dtype, *, hidden: int, heads: int, kv_heads: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        # Long sums, whose kernels differ most.
        intermediate_size=1536 if hidden == 128 else 3 * hidden // 2,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


async def chats(
    model: LlamaForCausalLM, *, order: int, rows: int, lanes: int = 1, max_prefill: int = 4096
) -> dict[str, list[Turn]]:
    """Two turns of every sibling; `order` draws the order in which they come, and their pauses."""
    engine = EmbeddedEngine(
        model,
        section=EmbeddedServing(max_batch_size=rows),
        max_context_tokens=CONTEXT,
        lanes=lanes,
        max_prefill=max_prefill,
    )
    draw = random.Random(order)

    async def chat(group: int, sibling: int, yields: int) -> list[Turn]:
        turns: list[Turn] = []
        ids = [(7 * position + group) % VOCAB for position in range(PROMPTS[group])]
        for turn in range(2):
            for _ in range(yields):
                await asyncio.sleep(0)
            got = await engine.generate(
                ids,
                SamplingParams(max_tokens=3 + 4 * sibling, seed=100 * group + 10 * sibling + turn),
                f"{group}-{sibling}",
            )
            turns.append((got.ids, got.log_probs))
            ids = [*ids, *got.ids, *range(5 + sibling)]
        await engine.end_session(f"{group}-{sibling}")
        return turns

    jobs = [(group, sibling) for group in range(len(PROMPTS)) for sibling in range(SIBLINGS)]
    draw.shuffle(jobs)
    made = await asyncio.gather(*(chat(*job, draw.randrange(20)) for job in jobs))
    await engine.close()
    return {f"{group}-{sibling}": turns for (group, sibling), turns in zip(jobs, made, strict=True)}


@pytest.mark.parametrize(("hidden", "heads", "kv_heads"), [(48, 6, 2), (48, 3, 3), (128, 2, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_company_does_not_change_a_bit(
    dtype: torch.dtype, hidden: int, heads: int, kv_heads: int
) -> None:
    """Rows alone and among others, prompts whole, in chunks and from a sibling's row, rows that
    were given away between turns. Seen to fail with torch's own shapes of products in float32, and
    in both dtypes if prompts are computed by another attention than decoded tokens."""
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no products of bfloat16")
    model = llama(dtype, hidden=hidden, heads=heads, kv_heads=kv_heads)
    alone = await chats(model, order=0, rows=1)
    ways = ({"rows": 16}, {"rows": 4}, {"rows": 16, "lanes": 3}, {"rows": 16, "max_prefill": 16})
    for order, way in enumerate(ways, start=1):
        assert await chats(model, order=order, **way) == alone, way


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_the_least_rows_have_the_bits_of_all_larger_ones(dtype: torch.dtype) -> None:
    """Fails on a processor whose kernels change at more rows than those that are padded to."""
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no products of bfloat16")
    model = llama(dtype, hidden=128, heads=2, kv_heads=1)
    least = least_rows(model)
    draw = torch.Generator().manual_seed(1)
    for layer in model.modules():
        if not isinstance(layer, torch.nn.Linear):
            continue
        rows = torch.randn(200, layer.in_features, generator=draw).to(dtype)
        whole = layer(rows)
        for count in range(least, 200, 4):
            assert torch.equal(layer(rows[:count]), whole[:count]), (layer, count, least)


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_a_row_of_logits_gives_the_same_token_and_bits_anywhere(top_p: float) -> None:
    logits = torch.randn(37, VOCAB, generator=torch.Generator().manual_seed(0)) * 4
    draws = [TokenDraw(temperature=0.9, top_p=top_p, uniform=at / 37) for at in range(37)]
    tokens, log_probs = sample(logits, draws)
    for row in range(37):
        assert sample(logits[row : row + 1], [draws[row]]) == ([tokens[row]], [log_probs[row]])
