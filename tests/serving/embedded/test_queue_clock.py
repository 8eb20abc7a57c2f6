"""The clock of a turn stands still while the turn waits for a row of the embedded engine."""

from __future__ import annotations

import asyncio

from agentrl.config.fleet import EmbeddedServing
from agentrl.engine import TURN_CLOCK
from agentrl.serving.embedded import EmbeddedEngine
from agentrl.types import Generation, SamplingParams
from tests.serving.embedded.peaked_model import peaked_model


class Clock:
    """Notes each hold and release."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def hold(self) -> None:
        self.events.append("hold")

    def release(self) -> None:
        self.events.append("release")


def ask(engine: EmbeddedEngine, clock: Clock, session: str) -> asyncio.Task[Generation]:
    async def turn() -> Generation:
        TURN_CLOCK.set(clock)
        sampling = SamplingParams(max_tokens=40, seed=1)
        return await engine.generate([3, 5, 7], sampling, session)

    return asyncio.create_task(turn())


async def test_only_the_wait_for_a_row_is_held() -> None:
    section = EmbeddedServing(max_batch_size=1)
    engine = EmbeddedEngine(
        peaked_model(), section=section, max_context_tokens=96, lanes=1, max_prefill=64
    )
    clocks = [Clock(), Clock(), Clock()]
    try:
        turns = [ask(engine, clock, f"s{index}") for index, clock in enumerate(clocks)]
        await asyncio.sleep(0)
        turns[2].cancel()  # it has been submitted, and gives up in the queue
        await asyncio.gather(*turns[:2])
        await asyncio.gather(turns[2], return_exceptions=True)
    finally:
        await engine.close()
    assert clocks[0].events == []
    assert clocks[1].events == ["hold", "release"]
    assert clocks[2].events in ([], ["hold", "release"])
