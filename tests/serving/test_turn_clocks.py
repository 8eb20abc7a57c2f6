"""The limit of a turn counts decoding: neither pauses nor the wait for an engine or its queue."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.engine import TURN_CLOCK, EngineHealth
from agentrl.errors import EngineError
from agentrl.serving import TokenClient
from agentrl.serving.turn_clocks import TurnClocks
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import Generation, SamplingParams


class Clock:
    """Counts who holds it."""

    def __init__(self) -> None:
        self.holds = 0
        self.held = 0

    def hold(self) -> None:
        self.holds += 1
        self.held += 1

    def release(self) -> None:
        self.holds -= 1
        assert self.holds >= 0


def ask(client: TokenClient, clock: Clock, session: str = "s") -> asyncio.Task[Generation]:
    async def turn() -> Generation:
        TURN_CLOCK.set(clock)
        return await client.generate([1, 2], SamplingParams(max_tokens=9), session)

    return asyncio.create_task(turn())


@pytest.fixture
async def client():
    made = TokenClient([ScriptedEngine(["hi"], ByteTokenizer(), delay_s=0.1)], wait_s=60)
    yield made
    await made.close()


async def test_turns_are_held_while_the_fleet_is_paused(client: TokenClient) -> None:
    """One was in flight before the pause, one begins in it."""
    before, within = Clock(), Clock()
    first = ask(client, before)
    await asyncio.sleep(0)
    assert before.holds == 0
    await client.pause_all()
    second = ask(client, within, "t")
    await asyncio.sleep(0.05)
    assert (before.holds, within.holds) == (1, 1)
    assert not first.done()
    await client.resume_all()
    assert (before.holds, within.holds) == (0, 0)
    await asyncio.gather(first, second)
    assert (before.held, within.held) == (1, 1)


async def test_a_turn_is_held_while_no_engine_takes_it(client: TokenClient) -> None:
    clock = Clock()
    client.quarantine("scripted-0", "for the test")
    turn = ask(client, clock)
    await asyncio.sleep(0.02)
    assert clock.holds == 1
    client.take_back("scripted-0")
    await turn
    assert (clock.holds, clock.held) == (0, 1)


async def test_what_brings_an_engine_back_is_on_the_clock_of_no_turn() -> None:
    """Fails if the task that a failed turn begins goes on with the clock of that turn."""
    clocks: dict[str, object] = {}

    class Sick(ScriptedEngine):
        async def generate(self, prompt_ids, sampling, session_id):
            if session_id == "lost":
                raise EngineError("out of memory")
            return await super().generate(prompt_ids, sampling, session_id)

        async def health(self):
            clocks["health"] = TURN_CLOCK.get()
            return EngineHealth(ready=False, version=0, in_flight=0, detail="sick")

        async def end_session(self, session_id):
            clocks["end"] = TURN_CLOCK.get()

    async def recover(engine):
        clocks["probe"] = TURN_CLOCK.get()
        back.set()

    back, clock = asyncio.Event(), Clock()
    engines = [Sick(["hi"], ByteTokenizer(), name="a"), Sick(["hi"], ByteTokenizer(), name="b")]
    client = TokenClient(engines, probe_s=0.005, recover=recover, wait_s=0.2)
    await ask(client, clock)
    client.drain(client.balancer.pinned("s") or "")
    await ask(client, clock)  # the session moves, which ends it where it was
    with pytest.raises(EngineError):
        await ask(client, clock, "lost")
    await asyncio.wait_for(back.wait(), 120)
    assert set(clocks) == {"health", "end", "probe"}
    assert clock not in clocks.values()
    await client.close()


async def test_a_turn_that_is_cancelled_in_a_pause_releases_its_clock(client: TokenClient) -> None:
    clock = Clock()
    await client.pause_all()
    turn = ask(client, clock)
    await asyncio.sleep(0.01)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert clock.holds == 0
    await client.resume_all()
    assert clock.holds == 0


def test_two_turns_of_one_clock_hold_it_twice() -> None:
    clocks, clock = TurnClocks(), Clock()
    token = TURN_CLOCK.set(clock)
    try:
        with clocks.turn():
            clocks.stop()
            clocks.stop()
            with clocks.turn():
                assert clock.holds == 2
            assert clock.holds == 1
            clocks.go_on()
            clocks.go_on()
            assert clock.holds == 0
    finally:
        TURN_CLOCK.reset(token)
