"""The embedded engine against a plain forward pass of the same model in float32."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DiffLlamaConfig,
    Gemma3TextConfig,
    GPTNeoXConfig,
    LlamaForCausalLM,
    ModernBertDecoderConfig,
    Phi3Config,
    Qwen2MoeConfig,
)

from agentrl.config.fleet import EmbeddedServing
from agentrl.engine import WeightTicket
from agentrl.errors import ConfigError, EngineError
from agentrl.serving.embedded import EmbeddedEngine
from agentrl.serving.embedded.sampling import TokenDraw, sample
from agentrl.types import FinishReason, Generation, SamplingParams
from tests.serving.embedded.peaked_model import VOCAB, peaked_model

CONTEXT = 96


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return peaked_model()


SETTINGS = {"lanes": 1}


@pytest.fixture(params=[1, 3], ids=["one lane", "three lanes"], autouse=True)
def lanes(request: pytest.FixtureRequest) -> int:
    """Each test holds whatever the number of lanes."""
    SETTINGS["lanes"] = request.param
    return request.param


def make_engine(
    model: LlamaForCausalLM, receive=None, max_prefill: int = 64, **section: float
) -> EmbeddedEngine:
    return EmbeddedEngine(
        model,
        section=EmbeddedServing.model_validate({"max_batch_size": 8, **section}),
        max_context_tokens=CONTEXT,
        receive=receive,
        lanes=SETTINGS["lanes"],
        max_prefill=max_prefill,
    )


@pytest.fixture
async def engine(model: LlamaForCausalLM) -> AsyncIterator[EmbeddedEngine]:
    made = make_engine(model)
    yield made
    await made.close()


def reference(model: LlamaForCausalLM, prompt: list[int], ids: tuple[int, ...]) -> torch.Tensor:
    """Log-probabilities of `ids` after `prompt` by one plain forward pass."""
    model = copy.deepcopy(model)  # the engine thread may be using the original
    model.config._attn_implementation = "sdpa"
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).squeeze(1)


def assert_exact(model: LlamaForCausalLM, prompt: list[int], got: Generation) -> None:
    expected = reference(model, prompt, got.ids)
    torch.testing.assert_close(torch.tensor(got.log_probs), expected, atol=2e-5, rtol=0)


def params(**settings: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 12, "seed": 1, **settings})  # type: ignore[arg-type]


async def test_log_probs_equal_a_plain_forward_pass(model, engine):
    # Fails if positions, the causal mask or the row slicing are off by one.
    prompts = [[3, 5, 7], [11] * 20, [2, 4, 6, 8, 10], list(range(1, 60))]
    got = await asyncio.gather(
        *(engine.generate(p, params(seed=i), f"s{i}") for i, p in enumerate(prompts))
    )
    for prompt, generation in zip(prompts, got, strict=True):
        assert len(generation.ids) == 12
        assert generation.finish_reason is FinishReason.LENGTH
        assert_exact(model, prompt, generation)


_GROUPED = {"num_key_value_heads": 2}
_WINDOWED = _GROUPED | {"sliding_window": 5, "initializer_range": 0.3}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Phi3Config, _GROUPED),
        (GPTNeoXConfig, {}),
        (Gemma3TextConfig, _WINDOWED | {"head_dim": 8, "sliding_window_pattern": 2}),
        # Leaves its window to the mask.
        (
            Qwen2MoeConfig,
            _WINDOWED | {"use_sliding_window": True, "max_window_layers": 1, "num_experts": 2,
            "num_experts_per_tok": 1, "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16},
        ),
    ],
)  # fmt: skip
async def test_families_that_attend_otherwise_are_exact(kind, settings) -> None:
    """Fails if several rows are decoded as if every model left its queries token by token, or if a
    window is off by one key."""
    torch.manual_seed(0)
    config = kind(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=256, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, **settings,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).float().eval()
    attention = model.config._attn_implementation
    engine = make_engine(model)
    # Whoever else runs the model before the first request runs its own.
    assert model.config._attn_implementation == attention
    try:
        prompts = [[*range(5, 22), 8 + index] for index in range(6)]
        results = await asyncio.gather(
            *(engine.generate(p, params(max_tokens=8), f"s{p[-1]}") for p in prompts)
        )
        for prompt, result in zip(prompts, results, strict=True):
            assert_exact(model, prompt, result)
    finally:
        await engine.close()


async def test_later_turns_compute_only_what_is_new(model, engine):
    prompt = [9, 8, 7, 6, 5]
    first = await engine.generate(prompt, params(), "chat")
    longer = [*prompt, *first.ids, 1, 2, 3]
    second = await engine.generate(longer, params(seed=2), "chat")
    # The last sampled token was never fed, so everything before it is in the row.
    assert second.cached_tokens == len(prompt) + len(first.ids) - 1
    assert_exact(model, longer, second)


async def test_siblings_share_one_prefill(model, engine):
    prompt = list(range(30, 50))
    got = await asyncio.gather(
        *(engine.generate(prompt, params(seed=i), f"sib{i}") for i in range(6))
    )
    metrics = (await engine.health()).metrics or {}
    assert metrics["prefill_tokens"] < 2 * len(prompt)
    assert len({g.ids for g in got}) > 1
    for generation in got:
        assert_exact(model, prompt, generation)


async def test_a_prompt_longer_than_the_prefill_budget_goes_in_chunks(model):
    engine = make_engine(model, max_prefill=16)
    prompt = [(7 * i) % VOCAB for i in range(70)]
    got = await engine.generate(prompt, params(), "long")
    assert_exact(model, prompt, got)
    await engine.close()


async def test_more_sessions_than_rows_stay_exact(model):
    # Rows are swapped, evicted and refilled; fails if any of that mixes sessions up.
    engine = make_engine(model, max_batch_size=3)

    async def chat(index: int) -> None:
        ids = [index + 1, index + 2]
        for turn in range(3):
            sampling = params(seed=100 * index + turn, max_tokens=3 + (index + turn) % 5)
            got = await engine.generate(ids, sampling, f"chat{index}")
            assert_exact(model, ids, got)
            ids = [*ids, *got.ids, (index * 3 + turn) % VOCAB]
            await asyncio.sleep(0.001 * (index % 3))
        await engine.end_session(f"chat{index}")

    await asyncio.gather(*(chat(i) for i in range(10)))
    assert (await engine.health()).in_flight == 0
    await engine.close()


async def test_a_seed_gives_the_same_tokens_in_any_company(model, engine):
    alone = await engine.generate([1, 2, 3], params(seed=42), "alone")
    crowd = await asyncio.gather(
        engine.generate([1, 2, 3], params(seed=42), "again"),
        *(engine.generate([4, i], params(seed=i), f"other{i}") for i in range(6)),
    )
    assert crowd[0].ids == alone.ids


async def test_a_stop_token_ends_the_turn_and_is_part_of_it(engine):
    free = await engine.generate([5, 5], params(max_tokens=20), "free")
    stop = free.ids[4]
    first = free.ids.index(stop)
    got = await engine.generate([5, 5], params(max_tokens=20, stop_token_ids=(stop,)), "stopped")
    assert got.finish_reason is FinishReason.STOP
    assert got.ids == free.ids[: first + 1]


async def test_weights_change_under_a_request_in_flight(model):
    original = {name: value.clone() for name, value in model.state_dict().items()}
    halved = ((n, value * 0.5) for n, value in original.items() if "norm" not in n)
    engine = make_engine(model, receive=lambda ticket: halved)
    turn = asyncio.create_task(engine.generate([1, 2], params(max_tokens=80), "long"))
    while (await engine.health()).metrics["generated_tokens"] < 5:
        await asyncio.sleep(0.001)
    await engine.pause()
    before = (await engine.health()).metrics["generated_tokens"]
    await asyncio.sleep(0.02)
    assert (await engine.health()).metrics["generated_tokens"] == before
    await engine.load_weights(WeightTicket(backend="test", version=1))
    assert not turn.done()
    await engine.resume()
    got = await turn
    split = got.policy_versions.index(1)
    assert got.policy_versions == (0,) * split + (1,) * (80 - split)
    assert 5 <= split < 80
    model.load_state_dict(original)
    await engine.close()


async def test_idle_rows_do_not_outlive_their_weights(model, engine):
    await engine.generate([1, 2, 3, 4], params(), "old")
    await engine.pause()
    await engine.load_weights(WeightTicket(backend="inprocess", version=1))
    await engine.resume()
    again = await engine.generate([1, 2, 3, 4], params(), "new")
    assert again.cached_tokens == 0
    assert again.policy_versions[0] == 1


async def test_a_cancelled_request_frees_its_place(model):
    engine = make_engine(model, max_batch_size=1)
    long = asyncio.create_task(engine.generate([1], params(max_tokens=90), "long"))
    await asyncio.sleep(0.01)
    long.cancel()
    got = await engine.generate([2, 3], params(), "next")
    assert_exact(model, [2, 3], got)
    assert (await engine.health()).in_flight == 0
    await engine.close()


async def test_a_failing_forward_pass_is_heard_by_everyone_it_served(model):
    # Fails (by hanging) if a request between the queue and the batch is forgotten.
    class Broken:
        def __call__(self, *args: object, **kwargs: object) -> None:
            raise MemoryError("no room for activations")

    engine = make_engine(model)
    engine._model._decoder = Broken()
    with pytest.raises(EngineError, match="no room for activations"):
        await asyncio.wait_for(engine.generate([1, 2], params(), "a"), timeout=120)
    assert "no room" in (await engine.health()).detail
    await engine.close()


async def test_a_second_turn_of_a_busy_session_is_refused_alone(model):
    # Fails if the whole engine dies of it.
    engine = make_engine(model)
    first = asyncio.create_task(engine.generate([1], params(max_tokens=80), "s"))
    while (await engine.health()).metrics["generated_tokens"] < 2:
        await asyncio.sleep(0.001)
    with pytest.raises(EngineError, match="in flight already"):
        await engine.generate([1], params(), "s")
    assert len((await first).ids) == 80
    await engine.close()


async def test_a_cancelled_turn_may_be_asked_for_again(model):
    engine = make_engine(model)
    lost = asyncio.create_task(engine.generate([1], params(max_tokens=80), "s"))
    while (await engine.health()).metrics["generated_tokens"] < 2:
        await asyncio.sleep(0.001)
    await engine.pause()
    lost.cancel()
    again = asyncio.create_task(engine.generate([1, 2], params(), "s"))
    await asyncio.sleep(0.01)
    await engine.resume()
    assert_exact(model, [1, 2], await again)
    await engine.close()


async def test_pauses_and_resumes_may_overlap(model):
    # Fails (by hanging) if one waits for the thread that the other starts.
    engine = make_engine(model)
    turn = asyncio.create_task(engine.generate([1], params(max_tokens=60), "s"))
    await asyncio.sleep(0.005)
    switches = (engine.pause(), engine.resume(), engine.resume(), engine.pause(), engine.resume())
    await asyncio.wait_for(asyncio.gather(*switches), timeout=120)
    assert len((await asyncio.wait_for(turn, timeout=120)).ids) == 60
    await engine.close()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "0 prompt tokens"),
        ([1] * CONTEXT, "context of 96"),
        ([VOCAB], "outside the vocabulary"),
    ],
)
async def test_requests_that_cannot_be_served(engine, prompt, message):
    with pytest.raises(EngineError, match=message):
        await engine.generate(prompt, params(), "bad")


async def test_the_context_bounds_the_turn(engine):
    got = await engine.generate([1] * (CONTEXT - 4), params(max_tokens=50), "full")
    assert len(got.ids) == 4
    assert got.finish_reason is FinishReason.LENGTH


async def test_weights_that_do_not_fit_are_named(model):
    engine = make_engine(model, receive=lambda ticket: [("lm_head.weight", torch.zeros(2, 2))])
    await engine.pause()
    with pytest.raises(EngineError, match=r"lm_head.weight.*\(2, 2\)"):
        await engine.load_weights(WeightTicket(backend="test", version=1))
    with pytest.raises(EngineError, match="not newer"):
        await engine.load_weights(WeightTicket(backend="test", version=0))
    assert engine.version == 0
    await engine.close()


async def test_an_engine_on_the_trainers_weights_takes_no_others(engine):
    """Fails if a ticket of a backend that moves weights only moves the version."""
    await engine.pause()
    with pytest.raises(EngineError, match="'shm', expected 'inprocess'"):
        await engine.load_weights(WeightTicket(backend="shm", version=1))


async def test_closing_fails_what_is_in_flight(model):
    engine = make_engine(model)
    turn = asyncio.create_task(engine.generate([1], params(max_tokens=90), "s"))
    await asyncio.sleep(0.005)
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await turn
    with pytest.raises(EngineError, match="closed"):
        await engine.generate([1], params(), "late")


def test_a_cache_without_room_for_one_sequence_is_refused(model):
    with pytest.raises(ConfigError, match="kv_cache_gb"):
        make_engine(model, kv_cache_gb=1e-6)


def test_a_context_beyond_the_model_is_refused(model):
    with pytest.raises(ConfigError, match="128 positions"):
        EmbeddedEngine(model, section=EmbeddedServing(), max_context_tokens=4096)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            BloomConfig(n_head=4),
            "0 of its 2 layers .* of their own",
        ),
        (DiffLlamaConfig(hidden_size=32, num_attention_heads=4), "attend more than once"),
    ],
)
def test_layers_that_do_not_look_back_once_are_refused_at_the_start(config, why):
    """Fails if such layers are decoded without their past, or with that of another one."""
    config.update({"vocab_size": VOCAB, "num_hidden_layers": 2})
    with pytest.raises(ConfigError, match=why + r".*serving\.engine: vllm"):
        make_engine(AutoModelForCausalLM.from_config(config).float().eval())


def test_a_head_of_several_layers_is_refused():
    """Fails if only its last layer is computed, whose logits are those of another model."""
    config = ModernBertDecoderConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=3, pad_token_id=0,
        num_attention_heads=2, eos_token_id=1, bos_token_id=2, cls_token_id=2, sep_token_id=1,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"ModernBertDecoder.* has a head of several layers"):
        make_engine(AutoModelForCausalLM.from_config(config).float().eval())


def test_draws_follow_the_softmax():
    # A grid of uniforms inverts the distribution exactly; fails if a block edge is off by one.
    torch.manual_seed(3)
    logits = torch.randn(1, 300) * 2
    grid = [(i + 0.5) / 20000 for i in range(20000)]
    ids, _ = sample(
        logits.expand(len(grid), -1),
        [TokenDraw(temperature=0.7, top_p=1.0, uniform=u) for u in grid],
    )
    share = torch.bincount(torch.tensor(ids), minlength=300) / len(grid)
    torch.testing.assert_close(share, (logits[0] / 0.7).softmax(-1), atol=1e-4, rtol=0)


def test_top_p_keeps_the_smallest_set_and_reports_the_full_distribution():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    grid = [(i + 0.5) / 100 for i in range(100)]
    ids, log_probs = sample(
        logits.expand(100, -1), [TokenDraw(temperature=1.0, top_p=0.7, uniform=u) for u in grid]
    )
    assert set(ids) == {0, 1}
    assert ids.count(0) == pytest.approx(62, abs=1)
    assert log_probs[ids.index(1)] == pytest.approx(torch.tensor(0.3).log().item())


def test_rows_are_drawn_each_in_its_own_way():
    logits = torch.zeros(3, 5)
    logits[:, 2] = 1.0
    draws = [
        TokenDraw(temperature=0.0, top_p=1.0, uniform=0.99),
        TokenDraw(temperature=1.0, top_p=1.0, uniform=0.999999999999),
        TokenDraw(temperature=1.0, top_p=1.0, uniform=0.0),
    ]
    assert sample(logits, draws)[0] == [2, 4, 0]
