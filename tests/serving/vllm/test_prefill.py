"""More prompt tokens at once than a server takes in one pass."""

from __future__ import annotations

import asyncio

from agentrl.serving.vllm import VllmEngine
from agentrl.types import SamplingParams


async def test_seeded_prompts_beyond_one_pass_do_not_kill_the_server(
    vllm_engine: VllmEngine,
) -> None:
    """Fails if prompts are computed in pieces: vLLM then turns a generator back, which ends the
    engine process on a CPU, and every turn with it."""
    sampling = SamplingParams(max_tokens=2, seed=1)
    prompts = [[(7 * i + j) % 250 for j in range(900)] for i in range(12)]
    answers = await asyncio.gather(
        *(vllm_engine.generate(prompt, sampling, f"s{i}") for i, prompt in enumerate(prompts))
    )
    assert [len(answer.ids) for answer in answers] == [2] * 12
    assert (await vllm_engine.health()).ready
