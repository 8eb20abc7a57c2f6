"""Prefixes that a server has evicted are counted, which is what the number of rollouts follows."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agentrl.serving.client import TokenClient
from agentrl.serving.records import Served
from agentrl.serving.vllm import VllmEngine
from agentrl.types import SamplingParams

PROMPT = 2000
"""Tokens of each conversation; the cache of the shared server holds about 100,000."""


async def test_evicted_prefixes_are_counted(vllm_engine: VllmEngine) -> None:
    """Fails if few conversations seem to be evicted, or many seem to be cached."""
    client = TokenClient([vllm_engine])
    few = await converse(client, "few", 10)
    assert (few.later_turns, few.prefix_tokens >= 10 * PROMPT) == (10, True)
    assert few.recomputed_tokens == 0
    many = await converse(client, "many", 60)
    later, prefix = many.later_turns - few.later_turns, many.prefix_tokens - few.prefix_tokens
    assert later == 60
    # Those used for longest are evicted first, and those are the ones that come next.
    assert many.recomputed_tokens > 0.5 * prefix


async def converse(client: TokenClient, name: str, sessions: int) -> Served:
    """Two turns of each conversation, side by side as far as the server decodes them together."""
    sampling = SamplingParams(max_tokens=2, seed=1)
    prompts = [
        [200 + index % 50, index % 7, *((index * j) % 190 for j in range(PROMPT))]
        for index in range(sessions)
    ]
    for more in (0, 8):
        turns = (
            client.generate([*prompt, *range(more)], sampling, f"{name}-{index}")
            for index, prompt in enumerate(prompts)
        )
        await asyncio.gather(*turns)
    for index in range(sessions):
        await client.end_session(f"{name}-{index}")
    return replace(client.stats()["vllm-0"].served)  # it goes on counting
