"""Engines that hold turns and produce nothing are found, and healthy ones never."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from agentrl.engine import Engine, EngineHealth
from agentrl.errors import EngineError, SyncError
from agentrl.serving import EngineState, TokenClient
from agentrl.serving.lean import LeanEngine
from agentrl.serving.member import WATCH_SESSION
from agentrl.serving.watch import EngineWatch
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams
from tests.serving.lean.lean_process import lean_process

SAMPLING = SamplingParams(seed=7)
LIMIT_S = 0.3


class Core(ScriptedEngine):
    """An HTTP front that always says it is well, before a core that can be stopped."""

    def __init__(self, name: str) -> None:
        super().__init__(["hi"], ByteTokenizer(), name=name)
        self.runs = asyncio.Event()
        self.runs.set()
        self.lock = asyncio.Lock()
        """One prompt is computed at a time, which fills every step."""
        self.blocks = 0
        self.sampled = 0
        self.prompt_s = 0.0
        """Seconds a prompt takes; each hundredth is a step that computes a piece of it."""
        self.counts = True
        """Whether it reports metrics."""

    async def generate(self, prompt_ids, sampling, session_id):
        async with self.lock:
            for _ in range(round(self.prompt_s * 100)):
                await asyncio.sleep(0.01)
                await self.runs.wait()
                self.blocks += 1
            await self.runs.wait()
            self.sampled += 1
            return await super().generate(prompt_ids, sampling, session_id)

    async def pause(self):
        await self.runs.wait()
        await super().pause()

    async def resume(self):
        await self.runs.wait()
        await super().resume()

    async def health(self):
        # As vLLM: a step that computes a piece of a prompt moves no counter.
        sampled = float(self.sampled)
        counters = dict.fromkeys(("generated_tokens", "prompt_tokens", "steps"), sampled)
        metrics = {**counters, "kv_cache_usage": self.blocks / 1e6} if self.counts else None
        return EngineHealth(ready=True, version=self.version, in_flight=0, metrics=metrics)


async def until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def watched(*engines: Engine, **options) -> AsyncIterator[tuple[TokenClient, list[str]]]:
    notes: list[str] = []
    client = TokenClient(engines, probe_s=0.05, pause_limit_s=LIMIT_S, **options)
    watch = EngineWatch(client, stuck_after_s=LIMIT_S, outage_limit_s=60.0, note=notes.append)
    watching = asyncio.create_task(watch.run())
    try:
        yield client, notes
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await client.close()


async def test_turns_of_a_stopped_core_go_to_another_and_it_comes_back() -> None:
    """Fails if health alone decides: the front answers all the time, and turns wait for ever."""
    a, b = Core("a"), Core("b")
    async with watched(a, b) as (client, notes):
        a.runs.clear()
        b.prompt_s = 0.02
        turns = [asyncio.create_task(client.generate([1], SAMPLING, f"s{i}")) for i in range(6)]
        answers = await asyncio.wait_for(asyncio.gather(*turns), 120)
        assert all(answer.ids for answer in answers)
        assert client.turns_resampled == 3
        assert client.balancer.state("a") is EngineState.QUARANTINED
        assert len(notes) == 1
        assert notes[0].startswith("a is stuck, its turns go to other engines: ")
        assert "sampled no token within 0.3 s" in notes[0]
        # It says that it is well, and must not be believed.
        await asyncio.sleep(3 * LIMIT_S)
        assert client.balancer.state("a") is EngineState.QUARANTINED
        assert client.is_stuck("a")
        a.runs.set()
        await until(lambda: client.balancer.state("a") is EngineState.ACTIVE)
        assert not client.is_stuck("a")


async def test_a_stopped_process_is_found_and_serves_again_when_it_goes_on() -> None:
    """Fails if a process that answers nothing at all holds its turns, or never comes back."""
    with lean_process(delay_s=0.1) as first, lean_process(delay_s=0.1) as second:
        engines = [
            LeanEngine(one.address, secret=one.secret, name=name)
            for name, one in (("a", first), ("b", second))
        ]
        for engine in engines:
            await engine.connect()
        async with watched(*engines) as (client, notes):
            first.process.send_signal(signal.SIGSTOP)
            turns = [asyncio.create_task(client.generate([1], SAMPLING, f"s{i}")) for i in range(4)]
            answers = await asyncio.wait_for(asyncio.gather(*turns), 120)
            assert all(answer.ids for answer in answers)
            assert client.active() == ["b"]
            assert client.turns_resampled == 2
            assert len(notes) == 1
            first.process.send_signal(signal.SIGCONT)
            await until(lambda: client.active() == ["a", "b"])


async def test_the_last_engine_is_taken_out_too_and_turns_wait_for_it() -> None:
    """Fails if a turn of a stuck engine waits for its own time limit of an hour."""
    a = Core("a")
    async with watched(a) as (client, notes):
        a.runs.clear()
        turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
        await until(lambda: client.is_stuck("a"))
        assert not turn.done()
        await until(lambda: len(notes) == 2)
        assert notes[1].startswith("no engine serves since 0 s; turns wait, and the run ends after")
        a.runs.set()
        assert (await asyncio.wait_for(turn, 120)).ids
        await until(lambda: len(notes) == 3)
        assert notes[2].startswith("engines serve again after ")


async def test_a_prompt_longer_than_the_limit_condemns_nobody() -> None:
    """Fails if only turns that end and tokens count as work: vLLM counts none while it computes
    a prompt in pieces, and the one token it is asked for queues behind that prompt."""
    a = Core("a")
    a.prompt_s = 6 * LIMIT_S
    async with watched(a) as (client, notes):
        assert (await client.generate([1], SAMPLING, "s")).ids
        assert notes == []
        assert client.quarantines == 0


async def test_an_engine_without_counters_is_asked_for_a_token_and_condemned_only_without() -> None:
    """Fails if a healthy engine that reports no numbers is condemned for one long turn."""
    a = Core("a")
    a.counts = False
    held = asyncio.Event()
    probes = 0

    async def generate(prompt_ids, sampling, session_id):
        nonlocal probes
        if session_id == "long":
            await held.wait()
        else:
            probes += 1
        return await ScriptedEngine.generate(a, prompt_ids, sampling, session_id)

    a.generate = generate
    async with watched(a) as (client, notes):
        turn = asyncio.create_task(client.generate([1], SAMPLING, "long"))
        await until(lambda: probes >= 2)
        held.set()
        assert (await turn).ids
        assert notes == []
        assert client.quarantines == 0


async def test_time_in_a_pause_or_without_turns_does_not_count() -> None:
    """Fails if an engine is condemned for what nobody asked it, or for a sync."""
    a = Core("a")
    async with watched(a) as (client, notes):
        await asyncio.sleep(3 * LIMIT_S)
        await client.pause_all()
        turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
        await asyncio.sleep(3 * LIMIT_S)
        await client.resume_all()
        assert (await turn).ids
        assert notes == []
        assert client.quarantines == 0


async def test_a_pause_waits_for_a_stuck_engine_no_longer_than_its_limit() -> None:
    """Fails if one stopped core of two holds the weights of both back."""
    a, b = Core("a"), Core("b")
    async with watched(a, b) as (client, _):
        a.runs.clear()
        await asyncio.wait_for(client.pause_all(), 120)
        assert client.active() == ["b"]
        assert client.is_stuck("a")
        await client.resume_all()
        a.runs.set()
        await until(lambda: client.active() == ["a", "b"])


async def test_a_pause_that_no_engine_answers_fails_and_all_must_prove_themselves() -> None:
    a = Core("a")
    async with watched(a) as (client, _):
        a.runs.clear()
        with pytest.raises(EngineError, match=r"pause failed on a: .*no answer within 0.3 s"):
            await client.pause_all()
        assert client.is_stuck("a")
        waiting = asyncio.create_task(client.start_over("nobody took them", limit_s=120))
        await asyncio.sleep(3 * LIMIT_S)
        assert not waiting.done()
        a.runs.set()
        await waiting
        assert client.active() == ["a"]


async def test_a_stuck_engine_with_torn_weights_serves_after_others_were_brought() -> None:
    """Fails if an engine that does not resume, because of its weights, is taken for stopped."""
    a, b = Core("a"), Core("b")
    torn = True
    recovered = 0

    async def resume() -> None:
        if torn:
            raise SyncError("torn")
        await ScriptedEngine.resume(a)

    async def recover(engine) -> None:
        nonlocal torn, recovered
        torn, recovered = False, recovered + 1

    a.resume = resume
    async with watched(a, b, recover=recover) as (client, _):
        client.quarantine("a", "stuck", stuck=True)
        await until(lambda: client.active() == ["a", "b"])
        assert recovered == 1
        assert not client.is_stuck("a")


async def test_an_engine_that_is_replaced_or_leaves_while_it_is_questioned_ends_nothing() -> None:
    """Fails if the watch of all others ends with an engine that has just gone."""
    a, b, c = Core("a"), Core("b"), Core("c")
    async with watched(a, b, c) as (client, notes):
        a.runs.clear()
        b.runs.clear()
        turns = [asyncio.create_task(client.generate([1], SAMPLING, f"s{i}")) for i in range(3)]
        await asyncio.sleep(1.2 * LIMIT_S)  # both are asked for a token
        client.replace("a", Core("a"))
        await client.remove_engine("b", limit_s=0.0)
        await asyncio.gather(*turns)
        c.runs.clear()
        await asyncio.gather(*(client.generate([1], SAMPLING, f"t{i}") for i in range(4)))
        await until(lambda: client.is_stuck("c"))
        assert [note.split()[0] for note in notes] == ["c"]


async def test_an_engine_that_this_machine_cannot_ask_is_not_condemned() -> None:
    """Fails if an engine counts as stuck while turns and questions wait for a file descriptor."""
    a = Core("a")
    a.runs.clear()

    async def health():
        return EngineHealth(ready=False, version=0, in_flight=0, detail="none", asked=False)

    a.health = health
    async with watched(a) as (client, notes):
        turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
        await asyncio.sleep(6 * LIMIT_S)
        assert (notes, client.quarantines) == ([], 0)
        del a.health
        await until(lambda: client.is_stuck("a"))
        turn.cancel()


async def test_the_watch_ends_with_its_questions() -> None:
    """Fails if a question still runs when whoever ended the watch closes the engines."""
    a = Core("a")
    a.runs.clear()
    asking = 0

    async def generate(prompt_ids, sampling, session_id):
        nonlocal asking
        asking += session_id == WATCH_SESSION
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.02)
            asking -= session_id == WATCH_SESSION

    a.generate = generate
    client = TokenClient([a])
    watch = EngineWatch(client, stuck_after_s=LIMIT_S, outage_limit_s=60.0, note=print)
    watching = asyncio.create_task(watch.run())
    turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await until(lambda: asking == 1)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert asking == 0
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)
    await client.close()


async def test_turns_of_other_clients_count() -> None:
    """Fails if a driver whose workers have clients of their own sees no stuck engine."""
    a, b = Core("a"), Core("b")
    async with watched(a, b) as (client, notes):
        a.runs.clear()
        busy = {"a": 3, "b": 0}
        client.counted = lambda own: {
            name: replace(stats, in_flight=busy[name]) for name, stats in own.items()
        }
        await until(lambda: client.is_stuck("a"))
        assert client.active() == ["b"]
        assert len(notes) == 1
