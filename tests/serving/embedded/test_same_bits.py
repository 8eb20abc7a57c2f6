"""A token and its log-probability do not hang on what is computed beside it, to the bit."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.config.fleet import EmbeddedServing
from agentrl.serving.embedded import EmbeddedEngine, forward
from agentrl.serving.embedded.cache_attention import CacheSegment
from agentrl.serving.embedded.forward import RowModel, least_rows
from agentrl.serving.embedded.kv_cache import KvCache
from agentrl.serving.embedded.row_attention import row_attention
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


def tokens_of_passes(model: RowModel) -> tuple[list[int], torch.Tensor]:
    """How many tokens the body reads in a prefill and a decoding step, and the last logits."""
    cache = KvCache(
        num_layers=model.num_layers, num_rows=1, num_heads=model.num_kv_heads, max_tokens=64,
        head_dim=model.head_dim, dtype=model.dtype, device=model.device,
    )  # fmt: skip
    cache.claim("only")
    counts: list[int] = []
    hook = model.model.model.embed_tokens.register_forward_hook(
        lambda _module, args, _output: counts.append(args[0].numel())
    )
    with torch.no_grad():
        model.prefill(cache, [CacheSegment(row=0, start=0, ids=[1, 2, 3])])
        cache.append_ids(0, (1, 2, 3))
        logits = model.decode(cache, [4])
    hook.remove()
    return counts, logits


def test_a_single_row_costs_two_only_where_two_have_the_bits_of_many(monkeypatch) -> None:
    """Fails if one row costs the products of four where it need not, or a kernel that rounds
    otherwise is taken for two rows."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no products of bfloat16")
    net = llama(torch.bfloat16, hidden=128, heads=2, kv_heads=1)
    least = least_rows(net)
    counts, logits = tokens_of_passes(RowModel(net))
    assert counts == [4, least]
    same_bits = forward._same_bits
    monkeypatch.setattr(
        forward, "_same_bits", lambda *args, **more: args[1] > 2 and same_bits(*args, **more)
    )
    counts, padded = tokens_of_passes(RowModel(net))
    assert counts == [4, max(4, least)]
    assert torch.equal(logits, padded)
    # Sines and exponentials of a remainder, which need more than two tokens.
    monkeypatch.setattr(forward, "_same_bits", same_bits)
    narrow = llama(torch.bfloat16, hidden=48, heads=6, kv_heads=2)
    assert tokens_of_passes(RowModel(narrow))[0][1] == 16


def test_a_trial_sees_what_a_narrow_result_hides() -> None:
    """A kernel of one row adds long sums in another order: 7 of 36864 numbers that come at random
    differ by it, and most of those whose sums cancel."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no products of bfloat16")
    weight = torch.randn(8, 1536, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    rows = torch.randn(64, 1536, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)

    def halves(part: torch.Tensor, weight: torch.Tensor, bias: object = None) -> torch.Tensor:
        wide, both = part.float(), weight.float()
        if len(part) >= 4:
            return (wide @ both.T).to(part.dtype)
        return (wide[:, ::2] @ both[:, ::2].T + wide[:, 1::2] @ both[:, 1::2].T).to(part.dtype)

    found = torch.cat([halves(part, weight) for part in rows.split(2)])
    assert (found != halves(rows, weight)).float().mean() < 0.02
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", halves)
        assert not forward._same_bits(weight, 2)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_keys_behind_a_row_change_no_bit_of_narrow_products(count: int) -> None:
    """Fails if sums of all keys are one product: beyond 1024 of them its kernel is another one."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no products of bfloat16")
    draw = torch.Generator().manual_seed(0)
    long, longer = 1024, 3072
    sizes = (count, longer, longer)
    query, keys, values = (
        torch.randn(8, size, 64, generator=draw).to(torch.bfloat16) for size in sizes
    )
    # Sums that cancel leave only what was rounded on the way.
    keys[:, long // 2 : long] = keys[:, : long // 2]
    values[:, long // 2 : long] = -values[:, : long // 2]
    mask = torch.zeros(1, 1, longer)
    mask[..., long:] = float("-inf")
    query /= 4  # as scaled queries are
    wide = row_attention(query, keys, values, mask)
    keys, values, mask = keys[:, :long], values[:, :long], mask[..., :long]
    assert torch.equal(row_attention(query, keys, values, mask), wide)


@pytest.mark.parametrize("count", [5, 6, 7, 9])
def test_threads_that_share_a_head_change_no_bit(count: int) -> None:
    """Fails if the head computes five rows: of two threads of MKL one takes another kernel."""
    net = llama(torch.float32, hidden=128, heads=2, kv_heads=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = RowModel(net)

        def decoded(rows: int) -> torch.Tensor:
            cache = KvCache(
                num_layers=model.num_layers, num_rows=rows, num_heads=model.num_kv_heads,
                max_tokens=64, head_dim=model.head_dim, dtype=model.dtype, device=model.device,
            )  # fmt: skip
            for row in range(rows):
                cache.claim(str(row))
            with torch.no_grad():
                return model.decode(cache, [row + 1 for row in range(rows)])

        assert torch.equal(decoded(count), decoded(16)[:count])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_a_row_of_logits_gives_the_same_token_and_bits_anywhere(top_p: float) -> None:
    logits = torch.randn(37, VOCAB, generator=torch.Generator().manual_seed(0)) * 4
    draws = [TokenDraw(temperature=0.9, top_p=top_p, uniform=at / 37) for at in range(37)]
    tokens, log_probs = sample(logits, draws)
    for row in range(37):
        assert sample(logits[row : row + 1], [draws[row]]) == ([tokens[row]], [log_probs[row]])
