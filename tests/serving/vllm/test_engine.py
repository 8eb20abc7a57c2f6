"""`VllmEngine` against a real vLLM server on the CPU."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.engine import WeightTicket
from agentrl.errors import EngineError, EngineRefused
from agentrl.serving.vllm import VllmEngine
from agentrl.serving.vllm.launcher import VllmServer
from agentrl.types import FinishReason, Generation, SamplingParams
from tests.serving.tiny_vllm import STOP, VOCABULARY, log_probs

PROMPT = tuple(range(40, 72))
LONG = SamplingParams(max_tokens=8000, seed=1)
"""Half a minute; nothing waits for its end."""


async def sampled(engine: VllmEngine) -> int:
    """Tokens that the server has sampled since it started."""
    health = await engine.health()
    return int((health.metrics or {})["generated_tokens"])


async def until_sampled(engine: VllmEngine, turn: asyncio.Task[Generation], total: int) -> None:
    """Wait until the server has sampled more than `total` tokens, while `turn` goes on."""
    deadline = time.monotonic() + 120
    while await sampled(engine) <= total:
        assert not turn.done(), turn
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def long_turn(
    engine: VllmEngine, prompt: Sequence[int] = PROMPT, sampling: SamplingParams = LONG
) -> asyncio.Task[Generation]:
    """A turn that is being sampled, and will be for a while."""
    before = await sampled(engine)
    turn = asyncio.create_task(engine.generate(prompt, sampling, "s"))
    await until_sampled(engine, turn, before)
    assert not turn.done(), "the server answered its counters only after the turn: too fast a model"
    return turn


async def test_tokens_in_and_tokens_out(vllm_engine: VllmEngine) -> None:
    sampling = SamplingParams(max_tokens=12, temperature=0.7, seed=3)
    answer = await vllm_engine.generate(PROMPT, sampling, "s")
    assert len(answer.ids) == 12
    assert all(0 <= token < VOCABULARY for token in answer.ids)
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.policy_versions == (0,) * 12


async def test_a_stop_token_is_part_of_the_answer(vllm_engine: VllmEngine) -> None:
    """Fails if the end token of the model, which is not asked for, ends a turn, or if the sampled
    stop token is cut off as text would be."""
    free = await vllm_engine.generate(PROMPT, SamplingParams(max_tokens=400, seed=3), "s")
    assert len(free.ids) == 400
    assert STOP in free.ids, "the test needs a draw that holds the end token"
    stops = (free.ids[7], STOP)
    sampling = SamplingParams(max_tokens=400, seed=3, stop_token_ids=stops)
    answer = await vllm_engine.generate(PROMPT, sampling, "s")
    first = min(free.ids.index(token) for token in stops)
    assert answer.finish_reason is FinishReason.STOP
    assert answer.ids == free.ids[: first + 1]


async def test_log_probs_are_those_of_the_sampling_distribution(
    vllm_engine: VllmEngine, vllm_model_dir: Path
) -> None:
    """Fails if the server reports log-probs of logits that were not divided by the temperature."""
    sampling = SamplingParams(max_tokens=40, temperature=0.7, seed=11)
    answer = await vllm_engine.generate(PROMPT, sampling, "s")
    expected = log_probs(vllm_model_dir, PROMPT, answer.ids, temperature=0.7)
    assert answer.log_probs == pytest.approx(expected, abs=1e-4)


async def test_a_seed_repeats_whatever_else_is_in_the_batch(vllm_engine: VllmEngine) -> None:
    sampling = SamplingParams(max_tokens=30, seed=2**63 - 5)
    alone = await vllm_engine.generate(PROMPT, sampling, "s")
    crowd = [SamplingParams(max_tokens=30, seed=seed) for seed in range(6)]
    answers = await asyncio.gather(
        *(vllm_engine.generate(PROMPT[: 9 + n], one, f"c{n}") for n, one in enumerate(crowd)),
        vllm_engine.generate(PROMPT, sampling, "s"),
    )
    assert answers[-1].ids == alone.ids
    assert len({answer.ids for answer in answers}) == len(answers)


async def test_a_repeated_prefix_is_reported_as_cached(vllm_engine: VllmEngine) -> None:
    prompt = [token % 250 for token in range(7, 407)]
    sampling = SamplingParams(max_tokens=1, seed=1)
    await vllm_engine.generate(prompt, sampling, "s")
    again = await vllm_engine.generate(prompt, sampling, "s")
    assert 128 <= again.cached_tokens < 400


async def test_a_turn_ends_where_the_context_does(vllm_engine: VllmEngine) -> None:
    answer = await vllm_engine.generate([5] * 8188, SamplingParams(max_tokens=50), "s")
    assert (len(answer.ids), answer.finish_reason) == (4, FinishReason.LENGTH)
    with pytest.raises(EngineRefused, match=r"8192 prompt tokens .* context of 8192"):
        await vllm_engine.generate([5] * 8192, SamplingParams(max_tokens=1), "s")
    with pytest.raises(EngineRefused, match="0 prompt tokens"):
        await vllm_engine.generate([], SamplingParams(max_tokens=1), "s")


async def test_what_the_server_does_not_take_is_refused(vllm_engine: VllmEngine) -> None:
    with pytest.raises(EngineRefused, match="out of vocabulary"):
        await vllm_engine.generate([VOCABULARY + 9], SamplingParams(max_tokens=1), "s")


async def test_cancelling_a_turn_ends_it_at_the_server(vllm_engine: VllmEngine) -> None:
    """Fails if a cancelled turn goes on sampling, into a cache that others need."""
    begun = await sampled(vllm_engine)
    turn = await long_turn(vllm_engine)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    deadline = time.monotonic() + 120
    while (await vllm_engine.health()).in_flight:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    before = await sampled(vllm_engine)
    assert before - begun < LONG.max_tokens, "it was sampled to its end"
    await asyncio.sleep(0.2)
    assert await sampled(vllm_engine) == before


async def test_a_paused_turn_goes_on_as_if_nothing_had_been(vllm_engine: VllmEngine) -> None:
    """Fails if `pause` ends or restarts what is in flight."""
    turn = await long_turn(vllm_engine)
    await vllm_engine.pause()
    frozen = await sampled(vllm_engine)
    late = asyncio.create_task(vllm_engine.generate(PROMPT, SamplingParams(max_tokens=3), "t"))
    await asyncio.sleep(0.2)
    assert await sampled(vllm_engine) == frozen
    assert not turn.done()
    assert not late.done()
    await vllm_engine.resume()
    assert len((await late).ids) == 3
    await until_sampled(vllm_engine, turn, frozen + 100)
    await vllm_engine.abort_all()
    await assert_as_if_alone(vllm_engine, await turn)


async def test_aborted_turns_keep_what_they_have(vllm_engine: VllmEngine) -> None:
    turn = await long_turn(vllm_engine)
    await vllm_engine.abort_all()
    answer = await turn
    assert answer.finish_reason is FinishReason.ABORT
    await assert_as_if_alone(vllm_engine, answer)


async def assert_as_if_alone(engine: VllmEngine, answer: Generation) -> None:
    count = len(answer.ids)
    assert 0 < count < LONG.max_tokens
    sampling = SamplingParams(max_tokens=count, seed=1)
    assert (await engine.generate(PROMPT, sampling, "s")).ids == answer.ids


async def test_weights_are_not_taken_while_running_or_backwards(vllm_engine: VllmEngine) -> None:
    with pytest.raises(EngineError, match="pause before load_weights"):
        await vllm_engine.load_weights(WeightTicket(backend="disk", version=1))
    await vllm_engine.pause()
    try:
        with pytest.raises(EngineError, match="version 0 is not newer than 0"):
            await vllm_engine.load_weights(WeightTicket(backend="disk", version=0))
    finally:
        await vllm_engine.resume()


async def test_a_server_that_is_not_there_refuses(unused_tcp_port: int) -> None:
    """Fails if a connection that never came about counts as a turn that may have been sampled."""
    engine = VllmEngine(f"http://127.0.0.1:{unused_tcp_port}")
    with pytest.raises(EngineRefused, match="no connection"):
        await engine.generate(PROMPT, LONG, "s")
    health = await engine.health()
    assert not health.ready
    assert "no connection" in health.detail
    await engine.close()


async def test_health_tells_version_and_counters(vllm_engine: VllmEngine) -> None:
    health = await vllm_engine.health()
    assert (health.ready, health.version, health.in_flight) == (True, 0, 0)
    assert health.metrics is not None
    assert health.metrics["prefix_queries"] > 0


async def test_closing_fails_what_is_in_flight(
    vllm_engine: VllmEngine, vllm_server: VllmServer
) -> None:
    """The server is paused, so that the turn cannot have ended before its engine is closed."""
    engine = VllmEngine(vllm_server.url)
    await vllm_engine.pause()
    turn = asyncio.create_task(engine.generate(PROMPT, LONG, "s"))
    try:
        while not (await engine.health()).in_flight:
            await asyncio.sleep(0.02)
        await engine.close()
        with pytest.raises(EngineError, match="the connection broke"):
            await asyncio.wait_for(turn, 120)
    finally:
        await vllm_engine.resume()
    with pytest.raises(EngineRefused, match="closed"):
        await engine.generate(PROMPT, LONG, "s")
    await engine.close()
