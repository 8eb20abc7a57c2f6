"""The client: safe retries, quarantine, versions, and nothing left in flight."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import subprocess
import sys

import pytest

from agentrl.engine import EngineHealth, WeightTicket
from agentrl.errors import EngineError, EngineRefused
from agentrl.serving import EngineState, LoadBalancer, TokenClient
from agentrl.serving.records import added
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams

SAMPLING = SamplingParams()


def ticket(version: int) -> WeightTicket:
    return WeightTicket(backend="inprocess", version=version)


def engines(count: int = 2, **options) -> list[ScriptedEngine]:
    return [
        ScriptedEngine(["hello"], ByteTokenizer(), name=f"e{i}", **options) for i in range(count)
    ]


async def test_a_refused_turn_goes_elsewhere_and_the_session_with_it():
    first, second = engines()
    await first.close()
    client = TokenClient([first, second], wait_s=0.05)
    await client.generate([1], SAMPLING, "s")
    await client.generate([1], SAMPLING, "s")
    assert len(second.requests) == 2
    await asyncio.sleep(0.01)
    assert client.active() == ["e1"]
    assert client.balancer.pinned("s") == "e1"
    await second.close()
    with pytest.raises(EngineError, match=r"within 0.05 s: e0 \(quarantined: closed\), e1"):
        await client.generate([1], SAMPLING, "s")
    assert client.balancer.in_flight("e0") == client.balancer.in_flight("e1") == 0
    await client.close()
    with pytest.raises(EngineRefused, match="the client is closed"):
        await client.generate([1], SAMPLING, "s")


async def test_a_turn_that_may_have_been_sampled_is_never_sampled_again():
    """Fails if every `EngineError` is retried: the second engine then has a request."""

    def broken(number, session_id):
        return EngineError("lost after sampling")

    first, second = engines()[0], ScriptedEngine(["x"], ByteTokenizer(), name="e1")
    first = ScriptedEngine(["x"], ByteTokenizer(), name="e0", fail=broken)
    client = TokenClient([first, second])
    with pytest.raises(EngineError, match="lost after sampling"):
        await client.generate([1], SAMPLING, "s")
    assert second.requests == []
    assert client.balancer.in_flight("e0") == 0


async def test_an_engine_that_keeps_failing_is_quarantined_but_never_the_last():
    def broken(number, session_id):
        return EngineError("bad day")

    both = [ScriptedEngine(["x"], ByteTokenizer(), name=n, fail=broken) for n in ("e0", "e1")]
    client = TokenClient(both)
    for _ in range(3):
        assert client.balancer.state("e0") is EngineState.ACTIVE
        with pytest.raises(EngineError, match="bad day"):
            await client.generate([1], SAMPLING, "s")
    assert client.balancer.state("e0") is EngineState.QUARANTINED
    for _ in range(5):
        with pytest.raises(EngineError, match="bad day"):
            await client.generate([1], SAMPLING, "s")
    assert len(both[1].requests) == 5
    assert client.balancer.active() == ["e1"]
    await client.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_failures_count_only_in_a_row():
    def often_broken(number, session_id):
        return None if number == 2 else EngineError("bad moment")

    flaky = ScriptedEngine(["x"], ByteTokenizer(), name="e0", fail=often_broken)
    client = TokenClient([flaky, *engines(2)[1:]])
    for number in range(5):
        if number == 2:
            await client.generate([1], SAMPLING, "s")
        else:
            with pytest.raises(EngineError, match="bad moment"):
                await client.generate([1], SAMPLING, "s")
    assert client.active() == ["e0", "e1"]
    assert client.stats()["e0"].served.failures == 4


class Sick(ScriptedEngine):
    """Fails and says so, until it is `well`."""

    well = False

    async def generate(self, prompt_ids, sampling, session_id):
        if not self.well:
            raise EngineError("out of memory")
        return await super().generate(prompt_ids, sampling, session_id)

    async def health(self):
        return EngineHealth(ready=self.well, version=self.version, in_flight=0, detail="sick")


async def test_a_quarantined_engine_comes_back_when_it_is_well():
    """It says itself that it is not ready, so one failure is enough; it must also have caught up
    with the weights of the others."""
    sick = Sick(["x"], ByteTokenizer(), name="e0")
    other = ScriptedEngine(["x"], ByteTokenizer(), name="e1", version=1)
    client = TokenClient([sick, other], probe_s=0.002)
    assert set((await client.generate([1], SAMPLING, "s")).policy_versions) == {1}
    assert client.balancer.state("e0") is EngineState.QUARANTINED
    sick.well = True
    await asyncio.sleep(0.05)
    assert client.balancer.state("e0") is EngineState.QUARANTINED
    await sick.pause()
    await sick.load_weights(ticket(1))
    await sick.resume()
    async with asyncio.timeout(120):
        while client.balancer.state("e0") is not EngineState.ACTIVE:
            await asyncio.sleep(0.005)
    await client.close()


async def test_in_flight_is_zero_after_any_mix_of_errors_and_cancellations():
    """Fails if `release` is not in a `finally`."""
    rng = random.Random(1)

    def mixed(number, session_id):
        return rng.choice([None, None, EngineError("x"), EngineRefused("y"), ValueError("bug")])

    fleet = engines(3, fail=mixed, delay_s=0.002)
    client = TokenClient(fleet)

    async def one(index):
        for _ in range(4):
            await client.generate([1, 2], SAMPLING, f"s{index % 10}")

    tasks = [asyncio.create_task(one(i)) for i in range(40)]
    await asyncio.sleep(0.004)
    for task in tasks[::3]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [client.balancer.in_flight(e.name) for e in fleet] == [0, 0, 0]
    await client.close()


async def test_weights_reach_every_engine_and_versions_agree():
    fleet = engines(2)
    client = TokenClient(fleet)
    assert client.version == 0
    await client.pause_all()
    waiting = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await client.load_weights(ticket(1))
    await client.load_weights(ticket(2))
    assert [e.loaded for e in fleet] == [[ticket(1), ticket(2)]] * 2
    await client.resume_all()
    assert set((await waiting).policy_versions) == {2}
    assert client.version == 2


async def test_nothing_resumes_with_different_versions():
    """Fails if `resume_all` does not compare: rollouts would then mix weights unseen."""
    fleet = engines(2)
    client = TokenClient(fleet)
    await client.pause_all()
    await fleet[0].load_weights(ticket(1))
    with pytest.raises(EngineError, match="different weight versions"):
        await client.resume_all()
    waiting = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    waiting.cancel()
    await fleet[1].load_weights(ticket(2))
    with pytest.raises(EngineError, match=r"load_weights failed on e0: .* e1"):
        await client.load_weights(ticket(1))
    assert client.active() == ["e0", "e1"]


async def test_the_version_outlives_those_who_served_it():
    """Fails if an outage of all engines makes the version that of a fresh process, or an error."""
    client = TokenClient(engines(2))
    await client.pause_all()
    await client.load_weights(ticket(3))
    await client.resume_all()
    for name in client.names():
        client.quarantine(name, "gone")
    client.replace("e0", engines(1, version=-1)[0])
    assert client.active() == []
    assert client.version == 3
    await client.close()


async def test_health_and_close_reach_everybody():
    class Deaf(ScriptedEngine):
        async def health(self):
            raise EngineError("no answer")

        async def close(self):
            raise EngineError("cannot close")

    deaf = Deaf(["x"], ByteTokenizer(), name="deaf")
    (good,) = engines(1)
    client = TokenClient([deaf, good])
    health = await client.health()
    assert [health["deaf"].ready, health["e0"].ready] == [False, True]
    with pytest.raises(EngineError, match="close failed on deaf"):
        await client.close()
    assert not (await good.health()).ready


async def test_end_session_reaches_the_engine_of_the_session_only():
    fleet = engines(2)
    client = TokenClient(fleet)
    await client.generate([1], SAMPLING, "s")
    await client.end_session("s")
    await client.end_session("s")
    assert [e.ended for e in fleet] == [["s"], []]


async def test_what_is_asked_and_answered_is_counted():
    class Caching(ScriptedEngine):
        async def generate(self, prompt_ids, sampling, session_id):
            generation = await super().generate(prompt_ids, sampling, session_id)
            return dataclasses.replace(generation, cached_tokens=len(prompt_ids) // 2)

    fleet = [Caching(["hello"], ByteTokenizer(), name=f"e{i}", version=4) for i in range(2)]
    client = TokenClient(fleet)
    for session in ("s", "s", "t"):
        await client.generate([1, 2, 3, 4], SAMPLING, session)
    first, second = client.stats().values()
    assert (first.name, first.version, first.in_flight) == ("e0", 4, 0)
    assert first.state is EngineState.ACTIVE
    assert (first.routed.first, first.routed.sticky, second.routed.first) == (1, 1, 1)
    assert (first.sticky_share, first.cached_share, second.sticky_share) == (1.0, 0.5, 1.0)
    assert first.served.generated_tokens == 2 * len("hello.")
    before = client.counters()
    assert before["serving/turns"] == 3
    assert before["serving/prompt_tokens"] == 12
    assert before["serving/requests_sticky"] == 1
    await client.remove_engine("e0")
    assert client.counters() == before
    assert client.names() == ["e1"]


@pytest.mark.parametrize("reports", [True, False])
async def test_prefixes_that_are_never_found_count_where_the_engine_would_say_so(reports: bool):
    """Fails if a cache that loses all from the first turn on is taken for one that is silent."""
    (engine,) = engines(1)
    engine.reports_cached = reports
    client = TokenClient([engine])
    for _ in range(3):
        await client.generate([1] * 1000, SAMPLING, "s")
    served = client.stats()["e0"].served
    assert (served.later_turns, served.recomputed_tokens) == ((2, 2000) if reports else (0, 0))


async def test_conversations_are_counted_from_their_first_turn_to_their_end():
    client = TokenClient(engines(2))
    for session in ("s", "s", "t", "u"):
        await client.generate([1], SAMPLING, session)
    assert [stats.sessions for stats in client.stats().values()] == [2, 1]
    await client.end_session("s")
    assert [stats.sessions for stats in client.stats().values()] == [1, 1]
    both = added(client.stats()["e0"], [*client.stats().values()])
    assert both.sessions == 2


def test_wrong_assemblies_are_refused():
    (one,) = engines(1)
    with pytest.raises(ValueError, match="at least one engine"):
        TokenClient([])
    with pytest.raises(ValueError, match="must be unique"):
        TokenClient([one, one])
    with pytest.raises(ValueError, match="empty LoadBalancer"):
        TokenClient([one], LoadBalancer(["e0"]))


def test_importing_the_client_does_not_import_torch():
    code = (
        "import sys, agentrl.serving, agentrl.rollout\n"
        "bad = {'torch', 'transformers', 'vllm', 'ray'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


async def test_a_message_names_the_first_of_many_engines() -> None:
    """Fails if an error over a fleet of hundreds is a wall of names."""
    client = TokenClient(engines(300))
    text = client.states()
    assert text.startswith("e0 (active), e1 (active)")
    assert text.endswith("e7 (active), and 292 more")
    await client.close()
