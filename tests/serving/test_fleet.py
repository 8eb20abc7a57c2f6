"""Engines that die, hang, recover, come and go: which turns survive, and with which weights."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from agentrl.engine import EngineHealth, WeightTicket
from agentrl.errors import EngineError, EngineRefused
from agentrl.serving import EngineState, LoadBalancer, TokenClient
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams

SAMPLING = SamplingParams(seed=7)


def ticket(version: int) -> WeightTicket:
    return WeightTicket(backend="inprocess", version=version)


class Server(ScriptedEngine):
    """An engine that can be killed: what is in flight fails, what comes is refused."""

    def __init__(self, name: str, *, version: int = 0, delay_s: float = 0.0) -> None:
        super().__init__(["hi"], ByteTokenizer(), name=name, version=version, delay_s=delay_s)
        self.alive = asyncio.Event()
        self.alive.set()
        self.died = asyncio.Event()
        self.asked = 0
        """Times its health was asked for."""
        self.answer_s = 0.0
        """Seconds its health and the end of a session take."""
        self.hears = True

    def kill(self) -> None:
        self.alive.clear()
        self.died.set()

    def revive(self) -> None:
        self.alive.set()
        self.died.clear()

    async def generate(self, prompt_ids, sampling, session_id):
        if self.died.is_set():
            raise EngineRefused(f"{self.name}: connection refused")
        answer = asyncio.create_task(super().generate(prompt_ids, sampling, session_id))
        death = asyncio.create_task(self.died.wait())
        try:
            await asyncio.wait([answer, death], return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                raise EngineError(f"{self.name}: connection reset")
            return await answer
        finally:
            for task in (answer, death):
                task.cancel()
            await asyncio.gather(answer, death, return_exceptions=True)

    async def end_session(self, session_id):
        await asyncio.sleep(self.answer_s)
        await super().end_session(session_id)

    async def health(self):
        self.asked += 1
        await asyncio.sleep(self.answer_s)
        ready = self.alive.is_set()
        return EngineHealth(
            ready=ready, version=self.version, in_flight=0, detail="" if ready else "dead"
        )

    def take(self, version: int) -> None:
        self._version = version


def servers(count: int = 2, **options) -> list[Server]:
    return [Server(f"e{i}", **options) for i in range(count)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


# -- turns that are lost ----------------------------------------------------------------------


async def test_a_turn_lost_with_its_engine_is_asked_of_another_with_the_same_seed_and_counted():
    """Fails if a lost turn fails the rollout, is not counted, or is drawn with another seed."""
    fleet = servers(delay_s=0.5)
    client = TokenClient(fleet)
    turn = asyncio.create_task(client.generate([1, 2], SAMPLING, "s"))
    await until(lambda: fleet[0].in_flight == 1)
    fleet[0].kill()
    generation = await turn
    assert fleet[0].requests[0].generation is None
    assert fleet[1].requests[0].generation == generation
    assert fleet[1].requests[0].sampling == SAMPLING
    assert client.turns_resampled == client.counters()["serving/turns_resampled"] == 1
    assert client.balancer.pinned("s") == "e1"
    assert client.active() == ["e1"]
    assert client.stats()["e0"].why == "dead"
    await client.close()


async def test_the_second_loss_of_a_turn_is_final():
    """Fails if a turn that kills its servers is carried on to the next ones."""
    fleet = servers(3, delay_s=0.02)
    client = TokenClient(fleet)
    turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    for server in fleet[:2]:
        await until(lambda server=server: server.in_flight == 1)
        server.kill()
    with pytest.raises(EngineError, match="e1: connection reset"):
        await turn
    assert fleet[2].requests == []
    assert client.turns_resampled == 1
    assert [client.balancer.in_flight(s.name) for s in fleet] == [0, 0, 0]
    await client.close()


async def test_a_dead_engine_is_asked_for_its_health_once_by_all_that_it_failed():
    fleet = servers(delay_s=0.02)
    fleet[0].answer_s = 0.01
    client = TokenClient(fleet, LoadBalancer(max_moves=0))
    turns = [asyncio.create_task(client.generate([1], SAMPLING, f"s{i}")) for i in range(40)]
    await until(lambda: fleet[0].in_flight == 20)
    fleet[0].kill()
    await asyncio.gather(*turns)
    assert client.turns_resampled == 20
    assert fleet[0].asked == 1
    await client.close()


async def test_an_engine_that_refuses_because_it_is_down_gets_no_more_first_turns():
    """Fails if refusals are not looked at: it has the least in flight, so all begin there."""
    fleet = servers(3)
    fleet[0].kill()
    client = TokenClient(fleet)
    await client.generate([1], SAMPLING, "s")
    await until(lambda: client.active() == ["e1", "e2"])
    assert client.stats()["e0"].served.refusals == 1
    await client.close()


async def test_a_full_fleet_refuses_and_nobody_is_quarantined():
    class Full(Server):
        async def generate(self, prompt_ids, sampling, session_id):
            raise EngineRefused(f"{self.name}: too many requests")

    client = TokenClient([Full("e0"), Full("e1")])
    with pytest.raises(EngineRefused, match="too many requests"):
        await client.generate([1], SAMPLING, "s")
    assert client.active() == ["e0", "e1"]
    await client.close()


# -- no engine --------------------------------------------------------------------------------


async def test_turns_wait_for_an_engine_to_come_back():
    """Fails if the last engine fails requests at once, or if who waits is not woken."""
    (only,) = servers(1)
    client = TokenClient([only], probe_s=0.005)
    only.kill()
    turns = [asyncio.create_task(client.generate([1], SAMPLING, f"s{i}")) for i in range(3)]
    await asyncio.sleep(0.03)
    assert not any(turn.done() for turn in turns)
    assert client.active() == []
    only.revive()
    assert len(await asyncio.gather(*turns)) == 3
    await client.close()


async def test_each_wait_for_an_engine_has_the_whole_limit():
    """Fails if the time that a turn was in flight counts as a wait for an engine."""
    server = Server("only", delay_s=0.6)
    client = TokenClient([server], probe_s=0.01, wait_s=0.5)
    server.kill()
    client.quarantine("only", "gone")
    turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await asyncio.sleep(0.05)
    server.revive()
    await until(lambda: client.balancer.in_flight("only") == 1)
    await asyncio.sleep(0.55)
    server.kill()
    await until(lambda: not client.active())
    await asyncio.sleep(0.1)
    server.revive()
    assert (await turn).ids
    await client.close()


async def test_waiting_for_an_engine_has_a_limit_and_says_what_is_wrong():
    (only,) = servers(1)
    only.kill()
    client = TokenClient([only], wait_s=0.02)
    with pytest.raises(EngineError, match=r"none came back within 0.02 s: e0 \(quarantined: dead"):
        await client.generate([1], SAMPLING, "s")
    impatient = TokenClient([only], wait_s=0.0)
    with pytest.raises(EngineError, match="within 0 s"):
        await impatient.generate([1], SAMPLING, "s")
    waiting = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await asyncio.sleep(0.005)
    await client.close()
    await impatient.close()
    with pytest.raises(EngineError):
        await waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}


# -- explicit quarantine ----------------------------------------------------------------------


async def test_wrong_weights_never_serve_not_even_what_is_in_flight():
    """Fails if what is in flight goes on: it would come back with tokens of torn weights."""
    fleet = servers(delay_s=0.2)
    client = TokenClient(fleet)
    turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await until(lambda: fleet[0].in_flight == 1)
    client.quarantine("e0", "torn weights")
    await turn
    assert [r.generation is None for r in fleet[0].requests] == [True]
    assert len(fleet[1].requests) == 1
    assert client.turns_resampled == 1
    assert client.stats()["e0"].state is EngineState.QUARANTINED
    with pytest.raises(EngineError, match=r"unknown engine.*e0, e1"):
        client.quarantine("e7", "none")
    with pytest.raises(EngineError, match=r"'e0' is quarantined \(torn weights\)"):
        client.restore("e0")
    await client.close()


async def test_the_last_engine_is_quarantined_too_and_its_turn_waits_for_it():
    (only,) = servers(1, delay_s=0.1)
    client = TokenClient([only], probe_s=0.005)
    turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await until(lambda: only.in_flight == 1)
    client.quarantine("e0", "torn weights")
    assert client.active() == []
    await turn
    assert len(only.requests) == 2
    await client.close()


async def test_a_cancelled_turn_stays_cancelled_while_its_engine_is_taken_out():
    fleet = servers(delay_s=1.0)
    client = TokenClient(fleet)
    turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await until(lambda: fleet[0].in_flight == 1)
    client.quarantine("e0", "torn weights")
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert client.balancer.in_flight("e0") == client.balancer.in_flight("e1") == 0
    await client.close()


async def test_an_engine_comes_back_only_after_it_took_the_newest_weights():
    """Fails if the hook is not awaited, if its failure is taken for success, or if the version is
    not compared after it (all three tried)."""
    fleet = servers(version=3)
    attempts: list[int] = []

    async def recover(engine):
        attempts.append(engine.version)
        if len(attempts) == 1:
            raise EngineError("no weights yet")
        if len(attempts) == 2:
            raise ValueError("a defect of the hook")
        engine.take(4 if len(attempts) == 3 else 5)

    client = TokenClient(fleet, probe_s=0.002, recover=recover)
    client.quarantine("e0", "its sync failed")
    fleet[1].take(5)
    await until(lambda: len(client.active()) == 2)
    assert len(attempts) == 4
    assert client.version == 5
    assert client.stats()["e0"].why == ""
    await client.close()


async def test_an_engine_that_is_not_well_after_its_recovery_stays_out():
    fleet = servers()

    async def recover(engine):
        recovered.set()

    recovered = asyncio.Event()
    client = TokenClient(fleet, probe_s=0.002, recover=recover)
    fleet[0].kill()
    client.quarantine("e0", "dead")
    await recovered.wait()
    await asyncio.sleep(0.02)
    assert client.active() == ["e1"]
    fleet[0].revive()
    await until(lambda: client.active() == ["e0", "e1"])
    await client.close()


async def test_an_engine_that_recovers_while_the_fleet_pauses_comes_back_after_the_sync():
    """Fails if the pause is looked at only before the hook (it would miss the new weights), or only
    after it (the hook lets an engine run while the others are paused)."""
    fleet = servers()
    begun, go_on = asyncio.Event(), asyncio.Event()
    calls = 0

    async def recover(engine):
        nonlocal calls
        calls += 1
        begun.set()
        await go_on.wait()

    client = TokenClient(fleet, probe_s=0.002, recover=recover)
    client.quarantine("e0", "a moment")
    await begun.wait()
    await client.pause_all()
    go_on.set()
    await asyncio.sleep(0.02)
    assert client.active() == ["e1"]
    assert calls == 1
    await client.load_weights(ticket(1))
    await client.resume_all()
    fleet[0].take(1)
    await until(lambda: client.active() == ["e0", "e1"])
    await client.close()


# -- weights ----------------------------------------------------------------------------------


class Broken(Server):
    """Fails one step of a sync."""

    def __init__(self, name: str, step: str) -> None:
        super().__init__(name)
        self.step = step

    async def pause(self):
        if self.step == "pause":
            raise EngineError("cannot pause")
        await super().pause()

    async def load_weights(self, ticket):
        if self.step == "load_weights":
            raise EngineError("cannot load")
        if self.step != "version":
            await super().load_weights(ticket)

    async def resume(self):
        if self.step == "resume":
            raise EngineError("cannot resume")
        await super().resume()


@pytest.mark.parametrize("step", ["pause", "load_weights", "version", "resume"])
async def test_an_engine_that_fails_a_sync_is_quarantined_and_the_others_go_on(step):
    broken, good = Broken("e0", step), Server("e1")
    client = TokenClient([broken, good])
    await client.pause_all()
    await client.load_weights(ticket(1))
    await client.resume_all()
    assert client.active() == ["e1"]
    assert client.version == 1
    assert set((await client.generate([1], SAMPLING, "s")).policy_versions) == {1}
    await client.close()


async def test_a_sync_that_every_engine_fails_is_an_error_and_leaves_them_as_they_are():
    client = TokenClient([Broken("e0", "pause"), Broken("e1", "pause")])
    with pytest.raises(EngineError, match=r"pause failed on e0: .*cannot pause.*e1: "):
        await client.pause_all()
    assert client.active() == ["e0", "e1"]


async def test_nobody_joins_between_pause_and_resume():
    """Fails if the pause is not looked at: an engine with the old weights would slip in."""
    first, second, third = servers(3)
    client = TokenClient([first, second], probe_s=0.002)
    client.quarantine("e1", "a moment")
    await client.pause_all()
    client.add_engine(third)
    await asyncio.sleep(0.03)
    assert client.active() == ["e0"]
    await client.load_weights(ticket(1))
    await client.resume_all()
    await asyncio.sleep(0.03)
    assert client.active() == ["e0"]
    second.take(1)
    third.take(1)
    await until(lambda: client.active() == ["e0", "e1", "e2"])
    await client.close()


class Hangs(Server):
    """Its core stops in one step of a sync."""

    def __init__(self, name: str, step: str) -> None:
        super().__init__(name)
        self.step = step

    async def stage_weights(self, ticket):
        if self.step == "stage_weights":
            await asyncio.sleep(600)

    async def load_weights(self, ticket):
        if self.step == "load_weights":
            await asyncio.sleep(600)
        await super().load_weights(ticket)


@pytest.mark.parametrize("how", ["quarantine", "remove", "replace", "close"])
async def test_staging_waits_for_no_engine_that_serves_no_more(how):
    """Fails if an engine that hangs while it stages holds the weights of the others back."""
    hung, good = Hangs("e0", "stage_weights"), Server("e1")
    client = TokenClient([hung, good])
    staging = asyncio.create_task(client.stage_weights(ticket(1)))
    await asyncio.sleep(0.01)
    assert not staging.done()
    match how:
        case "quarantine":
            client.quarantine("e0", "it is stuck", stuck=True)
        case "remove":
            await client.remove_engine("e0")
        case "replace":
            client.replace("e0", Server("e0"))
        case _:
            await client.close()
    await asyncio.wait_for(staging, 120)
    await client.close()


async def test_loading_waits_for_an_engine_no_longer_than_its_limit():
    """Fails if one stopped core of two keeps both paused."""
    hung, good = Hangs("e0", "load_weights"), Server("e1")
    client = TokenClient([hung, good], load_limit_s=0.05)
    await client.pause_all()
    await asyncio.wait_for(client.load_weights(ticket(1)), 120)
    await client.resume_all()
    assert (client.active(), client.version) == (["e1"], 1)
    assert client.is_stuck("e0")
    assert client.stats()["e0"].why == "load_weights failed: no answer within 0.05 s"
    await client.close()


# -- coming and going -------------------------------------------------------------------------


async def test_engines_come_and_go():
    first, second = servers(delay_s=0.3)
    client = TokenClient([first, second], probe_s=0.002)
    client.add_engine(Server("e2"))
    assert client.active() == ["e0", "e1", "e2"]
    with pytest.raises(EngineError, match=r"'e2' is there already \(active\)"):
        client.add_engine(Server("e2"))
    turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await until(lambda: first.in_flight == 1)
    leaving = asyncio.create_task(client.remove_engine("e0"))
    await until(lambda: client.names() == client.active() == ["e1", "e2"])
    assert not leaving.done()
    with pytest.raises(EngineError, match=r"'e0' is there already \(removed\)"):
        client.add_engine(Server("e0"))
    with pytest.raises(EngineError, match="unknown engine"):
        client.engine("e0")
    await turn
    await leaving
    with pytest.raises(EngineRefused, match="is closed"):
        await first.generate([1], SAMPLING, "s")
    client.add_engine(Server("e0"))
    assert client.active() == ["e1", "e2", "e0"]
    await client.close()


async def test_a_removed_engine_that_does_not_end_its_turns_gives_them_up():
    fleet = servers()
    await fleet[0].pause()
    client = TokenClient(fleet)
    turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await until(lambda: client.balancer.in_flight("e0") == 1)
    await client.remove_engine("e0", limit_s=0.01)
    await turn
    assert len(fleet[1].requests) == 1
    assert client.turns_resampled == 1
    await client.close()


async def test_a_late_joiner_takes_the_weights_of_the_others_first():
    """Fails if it serves at once with the weights it was started with."""

    async def recover(engine):
        engine.take(6)

    client = TokenClient(servers(1, version=6), probe_s=0.002, recover=recover)
    late = Server("late")
    client.add_engine(late)
    assert client.active() == ["e0"]
    assert client.stats()["late"].why == "it joins with weights of version 0"
    await until(lambda: client.active() == ["e0", "late"])
    assert client.version == 6
    await client.close()


async def test_a_restarted_engine_takes_the_place_and_not_the_sessions_of_the_old_one():
    """Fails if a lone server that was restarted serves the weights it was started with."""
    (old,) = servers(1, delay_s=0.2)
    client = TokenClient([old], probe_s=0.002)
    old.take(5)
    await client.generate([1], SAMPLING, "before")
    turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await until(lambda: client.balancer.in_flight("e0") == 1)
    await old.pause()
    new = Server("e0")
    client.replace("e0", new)
    await asyncio.sleep(0.02)
    with pytest.raises(EngineRefused, match="is closed"):
        await old.generate([1], SAMPLING, "s")
    assert client.active() == []
    assert client.balancer.pinned("before") is None
    new.take(5)
    assert set((await turn).policy_versions) == {5}
    assert client.stats()["e0"].served.turns == 2
    with pytest.raises(EngineError, match="cannot be replaced by one named 'e9'"):
        client.replace("e0", Server("e9"))
    await client.close()


async def test_a_drained_engine_ends_its_turns_and_comes_back_when_asked_and_up_to_date():
    fleet = servers(delay_s=0.2)
    client = TokenClient(fleet, probe_s=0.002)
    turn = asyncio.create_task(client.generate([1], SAMPLING, "s"))
    await until(lambda: fleet[0].in_flight == 1)
    client.drain("e0")
    await turn
    await client.generate([1], SAMPLING, "s")
    assert [len(server.requests) for server in fleet] == [1, 1]
    client.restore("e0")
    assert client.active() == ["e0", "e1"]
    client.drain("e0")
    fleet[1].take(2)
    client.restore("e0")
    assert client.active() == ["e1"]
    fleet[0].take(2)
    await until(lambda: client.active() == ["e0", "e1"])
    await client.close()


# -- sessions ---------------------------------------------------------------------------------


async def crowd(client: TokenClient, name: str, count: int) -> list[asyncio.Task]:
    others = [other for other in client.active() if other != name]
    for other in others:
        client.drain(other)
    tasks = [asyncio.create_task(client.generate([1], SAMPLING, f"c{i}")) for i in range(count)]
    await asyncio.sleep(0.002)
    for other in others:
        client.restore(other)
    return tasks


async def test_a_session_moves_only_when_its_prefix_is_worth_less_than_the_wait():
    """Fails if the client does not say how long the prefix is, or does not forget it when the
    weights change and the caches with them (both tried)."""
    fleet = servers(delay_s=0.01)
    client = TokenClient(fleet, LoadBalancer(alpha=0.1))
    prompt = list(range(40))
    await client.generate(prompt, SAMPLING, "s")
    assert client.balancer.pinned("s") == "e0"
    waiting = await crowd(client, "e0", 4)
    await client.generate(prompt, SAMPLING, "s")
    assert client.balancer.pinned("s") == "e0"
    await asyncio.gather(*waiting)
    for server in fleet:
        server.take(1)
    waiting = await crowd(client, "e0", 4)
    await client.generate(prompt, SAMPLING, "s")
    assert client.balancer.pinned("s") == "e1"
    await until(lambda: fleet[0].ended == ["s"])
    await asyncio.gather(*waiting)
    await client.close()


async def test_a_session_that_returns_does_not_end_afterwards():
    """Fails if the turn does not wait for the end of the session that is still on its way."""
    order: list[str] = []

    class Slow(Server):
        async def end_session(self, session_id):
            await super().end_session(session_id)
            order.append("ended")

        async def generate(self, prompt_ids, sampling, session_id):
            order.append("asked")
            return await super().generate(prompt_ids, sampling, session_id)

    slow, other = Slow("e0"), Server("e1")
    slow.answer_s = 0.02
    client = TokenClient([slow, other])
    await client.generate([1], SAMPLING, "s")
    client.drain("e0")
    await client.generate([1], SAMPLING, "s")
    client.restore("e0")
    client.drain("e1")
    await client.generate([1], SAMPLING, "s")
    assert order == ["asked", "ended", "asked"]
    await client.close()


async def test_the_end_of_a_session_on_an_engine_beyond_hearing_is_no_error():
    class Deaf(Server):
        async def end_session(self, session_id):
            raise EngineError("connection refused")

    client = TokenClient([Deaf("e0")])
    await client.generate([1], SAMPLING, "s")
    await client.end_session("s")
    await client.close()


@pytest.mark.parametrize("seed", range(5))
async def test_any_chaos_ends_with_nothing_in_flight_and_every_answer_from_one_engine(seed):
    rng = random.Random(seed)
    fleet = servers(3, delay_s=0.001)
    everyone = {server.name: [server] for server in fleet}

    async def recover(engine):
        await asyncio.sleep(0.001)
        if not engine.alive.is_set() or rng.random() < 0.3:
            raise EngineError("not yet")
        engine.take(client.version if client.active() else 0)

    client = TokenClient(fleet, probe_s=0.001, recover=recover, wait_s=2.0)
    answers = []

    async def conversation(index: int) -> None:
        for _ in range(10):
            try:
                answers.append(await client.generate([index], SAMPLING, f"s{index}"))
            except EngineError:
                continue
        await client.end_session(f"s{index}")

    async def trouble() -> None:
        for _ in range(30):
            await asyncio.sleep(0.001)
            name = rng.choice(client.names())
            server = client.engine(name)
            what = rng.choice(["kill", "revive", "quarantine", "replace", "remove", "drain"])
            if what == "kill":
                server.kill()
            elif what == "revive":
                server.revive()
            elif what == "quarantine":
                client.quarantine(name, "chaos")
            elif what == "replace":
                new = Server(name, delay_s=0.001)
                everyone[name].append(new)
                client.replace(name, new)
            elif what == "remove" and len(client.names()) > 1:
                await client.remove_engine(name, limit_s=0.002)
                new = Server(name, delay_s=0.001)
                everyone[name].append(new)
                client.add_engine(new)
            elif what == "drain" and client.stats()[name].state is EngineState.ACTIVE:
                client.drain(name)
                client.restore(name)

    tasks = [asyncio.create_task(conversation(i)) for i in range(20)]
    await trouble()
    for server in (client.engine(name) for name in client.names()):
        server.revive()
    await asyncio.gather(*tasks)
    assert all(client.balancer.in_flight(name) == 0 for name in client.names())
    heard = [r for servers in everyone.values() for s in servers for r in s.requests]
    sampled = [id(r.generation) for r in heard if r.generation is not None]
    assert {id(answer) for answer in answers} <= set(sampled)
    assert len({id(answer) for answer in answers}) == len(answers)
    assert client.counters()["serving/turns"] == len(answers)
    await client.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
