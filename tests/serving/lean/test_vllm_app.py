"""The lean listener inside a real vLLM server on the CPU."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.errors import EngineError, EngineRefused
from agentrl.serving.connect import connect_engine
from agentrl.serving.lean.vllm_engine import VllmLeanEngine
from agentrl.serving.vllm import VllmEngine
from agentrl.serving.vllm.http import Http
from agentrl.serving.vllm.launcher import VllmServer
from agentrl.serving.vllm.metrics import read_metrics
from agentrl.types import FinishReason, SamplingParams
from tests.serving.tiny_vllm import CONTEXT, SECRET, STOP

PROMPT = [token % 250 for token in range(40, 140)]
LONG = SamplingParams(max_tokens=2500, seed=1)
"""More than ten seconds on two cores; long enough to be seen running."""
SHORTER = SamplingParams(max_tokens=600, seed=1)
"""Two seconds and more, for a turn that is paused as soon as it runs."""


@pytest.fixture
async def lean(vllm_server: VllmServer) -> AsyncIterator[VllmLeanEngine]:
    engine = await connect_engine(vllm_server.url, name="lean", secret=SECRET, transport="lean")
    assert isinstance(engine, VllmLeanEngine)
    yield engine
    await engine.close()


@pytest.fixture
async def http(vllm_server: VllmServer) -> AsyncIterator[VllmEngine]:
    engine = await connect_engine(vllm_server.url, name="http", transport="http")
    assert type(engine) is VllmEngine
    yield engine
    await engine.close()


async def until_running(engine: VllmEngine, count: int) -> None:
    """By the server's own counter alone: what goes to its engine core may wait behind a turn."""
    http = Http(engine.url)
    deadline = time.monotonic() + 120
    try:
        while True:
            page = await http.expect("GET", "/metrics", limit_s=20)
            numbers = read_metrics(page.body.decode())
            if numbers.get("running") == count:
                return
            assert time.monotonic() < deadline, numbers
            await asyncio.sleep(0.02)
    finally:
        await http.close()


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=30, temperature=0.7, top_p=0.8, seed=3),
        SamplingParams(max_tokens=400, seed=2**63 - 5, stop_token_ids=(STOP,)),
        SamplingParams(max_tokens=400, seed=4, stop_token_ids=(STOP, *range(30))),
        SamplingParams(max_tokens=30, temperature=0.0),
        SamplingParams(max_tokens=50, temperature=2.0, seed=9),
    ],
)
async def test_a_turn_is_the_one_that_http_gives(
    lean: VllmLeanEngine, http: VllmEngine, sampling: SamplingParams
) -> None:
    """Fails if a parameter is left to vLLM's defaults, log-probs are raw ones, or the stop token
    is cut off."""
    over_http = await http.generate(PROMPT, sampling, "s")
    over_lean = await lean.generate(PROMPT, sampling, "s")
    assert over_lean.ids == over_http.ids
    assert over_lean.log_probs == pytest.approx(over_http.log_probs, abs=1e-4)
    assert over_lean.finish_reason is over_http.finish_reason
    assert over_lean.policy_versions == over_http.policy_versions


async def test_a_later_turn_sends_its_new_tokens_and_finds_the_cache(
    lean: VllmLeanEngine,
) -> None:
    prompt = [token % 251 for token in range(300)]
    sampling = SamplingParams(max_tokens=40, seed=1)
    first = await lean.generate(prompt, sampling, "s")
    sent = lean.stats.sent_bytes
    again = [*prompt, *first.ids, 5, 6, 7]
    second = await lean.generate(again, sampling, "s")
    assert lean.stats.sent_bytes - sent < 150
    assert second.cached_tokens >= 256  # whole blocks of 128
    alone = await lean.generate(again, sampling, "another session")
    assert alone.ids == second.ids
    assert lean.stats.full_prompts == 2
    await lean.end_session("s")


async def test_the_numbers_of_weights_are_ours(vllm_server: VllmServer) -> None:
    """Fails if the server's own word for its first weights reaches a trajectory as a number."""
    engine = await connect_engine(
        vllm_server.url, name="lean", secret=SECRET, transport="lean", start_version=7
    )
    answer = await engine.generate(PROMPT, SamplingParams(max_tokens=3, seed=1), "s")
    assert answer.policy_versions == (7, 7, 7)
    assert engine.version == 7
    await engine.close()


async def test_a_cancelled_turn_ends_at_the_server(lean: VllmLeanEngine) -> None:
    turn = asyncio.create_task(lean.generate(PROMPT, LONG, "s"))
    await until_running(lean, 1)
    turn.cancel()
    await until_running(lean, 0)


async def test_a_turn_waits_while_the_server_is_paused(lean: VllmLeanEngine) -> None:
    """Fails if control over HTTP and turns over lean do not meet in one engine."""
    turn = asyncio.create_task(lean.generate(PROMPT, SHORTER, "s"))
    await until_running(lean, 1)
    await lean.pause()
    await asyncio.sleep(0.5)
    assert not turn.done()
    await lean.resume()
    assert (await asyncio.wait_for(turn, 120)).finish_reason is FinishReason.LENGTH


async def test_a_prompt_beyond_the_context_is_refused(lean: VllmLeanEngine) -> None:
    with pytest.raises(EngineRefused, match=f"do not fit a context of {CONTEXT}"):
        await lean.generate([1] * CONTEXT, LONG, "s")
    answer = await lean.generate([1] * (CONTEXT - 4), SamplingParams(max_tokens=900), "s")
    assert len(answer.ids) == 4


async def test_a_token_that_is_none_fails_alone(lean: VllmLeanEngine) -> None:
    with pytest.raises(EngineError, match="vLLM"):
        await lean.generate([5, 10**6], SamplingParams(max_tokens=3), "s")
    await lean.generate(PROMPT, SamplingParams(max_tokens=3), "s")


async def test_another_secret_falls_back_to_http_unless_lean_is_asked_for(
    vllm_server: VllmServer,
) -> None:
    with pytest.raises(EngineRefused, match="secret"):
        await connect_engine(vllm_server.url, name="e", secret="wrong", transport="lean")
    engine = await connect_engine(vllm_server.url, name="e", secret="wrong")
    assert type(engine) is VllmEngine
    await engine.close()


async def test_a_killed_server_fails_its_turns_and_is_found_again(
    lean: VllmLeanEngine, vllm_server: VllmServer
) -> None:
    """Fails if the address of the listener is remembered from before."""
    turn = asyncio.create_task(lean.generate(PROMPT, LONG, "s"))
    await until_running(lean, 1)
    supervisor = vllm_server.pid
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    with pytest.raises(EngineError, match="may have been served"):
        await asyncio.wait_for(turn, 120)
    assert not (await lean.health()).ready
    await vllm_server.restart()
    assert (await lean.health()).ready
    answer = await lean.generate(PROMPT, SamplingParams(max_tokens=3, seed=1), "s")
    assert len(answer.ids) == 3
    assert lean.stats.connections == 2
