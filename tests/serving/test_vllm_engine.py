"""`VllmEngine` against a real vLLM server on the CPU."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tiny_vllm import STOP, VOCABULARY, log_probs

from agentrl.engine import WeightTicket
from agentrl.errors import EngineError, EngineRefused
from agentrl.serving.vllm import VllmEngine
from agentrl.serving.vllm.launcher import VllmServer
from agentrl.types import FinishReason, Generation, SamplingParams

PROMPT = tuple(range(40, 72))
LONG = SamplingParams(max_tokens=3500, seed=1)
"""Some four seconds."""


async def until_running(
    engine: VllmEngine, count: int, turn: asyncio.Task[Generation] | None = None
) -> None:
    """Wait until the server says that it decodes `count` requests."""
    deadline = time.monotonic() + 20
    while True:
        assert turn is None or not turn.done(), turn
        metrics = (await engine.health()).metrics or {}
        if metrics.get("running") == count:
            return
        assert time.monotonic() < deadline, metrics
        await asyncio.sleep(0.02)


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
    answer = await vllm_engine.generate([5] * 4092, SamplingParams(max_tokens=50), "s")
    assert (len(answer.ids), answer.finish_reason) == (4, FinishReason.LENGTH)
    with pytest.raises(EngineRefused, match=r"4096 prompt tokens .* context of 4096"):
        await vllm_engine.generate([5] * 4096, SamplingParams(max_tokens=1), "s")
    with pytest.raises(EngineRefused, match="0 prompt tokens"):
        await vllm_engine.generate([], SamplingParams(max_tokens=1), "s")


async def test_what_the_server_does_not_take_is_refused(vllm_engine: VllmEngine) -> None:
    with pytest.raises(EngineRefused, match="out of vocabulary"):
        await vllm_engine.generate([VOCABULARY + 9], SamplingParams(max_tokens=1), "s")


async def test_cancelling_a_turn_ends_it_at_the_server(vllm_engine: VllmEngine) -> None:
    """Fails if a cancelled turn goes on sampling, into a cache that others need."""
    turn = asyncio.create_task(vllm_engine.generate(PROMPT, LONG, "s"))
    await until_running(vllm_engine, 1, turn)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await until_running(vllm_engine, 0)
    before = (await vllm_engine.health()).metrics
    await asyncio.sleep(0.2)
    assert before is not None
    after = (await vllm_engine.health()).metrics or {}
    assert after["generated_tokens"] == before["generated_tokens"]


async def test_a_paused_turn_goes_on_as_if_nothing_had_been(vllm_engine: VllmEngine) -> None:
    """Fails if `pause` ends or restarts what is in flight."""
    sampling = SamplingParams(max_tokens=1500, seed=1)
    whole = await vllm_engine.generate(PROMPT, sampling, "s")
    turn = asyncio.create_task(vllm_engine.generate(PROMPT, sampling, "s"))
    await until_running(vllm_engine, 1, turn)
    await vllm_engine.pause()
    frozen = (await vllm_engine.health()).metrics or {}
    late = asyncio.create_task(vllm_engine.generate(PROMPT, SamplingParams(max_tokens=3), "t"))
    await asyncio.sleep(0.2)
    still = (await vllm_engine.health()).metrics or {}
    assert still["generated_tokens"] == frozen["generated_tokens"]
    assert not turn.done()
    assert not late.done()
    await vllm_engine.resume()
    assert (await turn).ids == whole.ids
    assert len((await late).ids) == 3


async def test_aborted_turns_keep_what_they_have(vllm_engine: VllmEngine) -> None:
    turn = asyncio.create_task(vllm_engine.generate(PROMPT, LONG, "s"))
    await until_running(vllm_engine, 1, turn)
    await vllm_engine.abort_all()
    answer = await turn
    sampling = SamplingParams(max_tokens=len(answer.ids), seed=1)
    whole = await vllm_engine.generate(PROMPT, sampling, "s")
    assert answer.finish_reason is FinishReason.ABORT
    assert answer.ids == whole.ids
    assert 0 < len(answer.ids) < 3500


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


async def test_closing_fails_what_is_in_flight(vllm_server: VllmServer) -> None:
    engine = VllmEngine(vllm_server.url)
    turn = asyncio.create_task(engine.generate(PROMPT, LONG, "s"))
    await until_running(engine, 1, turn)
    await engine.close()
    with pytest.raises(EngineError):
        await turn
    with pytest.raises(EngineRefused, match="closed"):
        await engine.generate(PROMPT, LONG, "s")
    await engine.close()
