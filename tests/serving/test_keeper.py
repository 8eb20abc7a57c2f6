"""Servers that die or hang come back, with the newest weights, and not too often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentrl.engine import Engine, WeightTicket
from agentrl.errors import EngineError
from agentrl.serving import EngineState, TokenClient
from agentrl.serving.keeper import Keeper
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams

SAMPLING = SamplingParams()


def engine(name: str, version: int = 0) -> ScriptedEngine:
    return ScriptedEngine(["hello"], ByteTokenizer(), name=name, version=version)


class Server:
    """A process that dies when told, and starts with the weights it was first given."""

    def __init__(self, name: str, *, starts: Callable[[], bool] = lambda: True) -> None:
        self.name = name
        self.engine = engine(name)
        self.running = True
        self.tries = 0
        self._starts = starts

    async def kill(self) -> None:
        self.running = False
        await self.engine.close()

    async def alive(self) -> bool:
        return self.running

    async def start_again(self) -> Engine:
        self.tries += 1
        if not self._starts():
            raise EngineError("it ended with status 1 while starting")
        self.engine, self.running = engine(self.name), True
        return self.engine


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_dead_server_comes_back_with_the_newest_weights() -> None:
    """Fails if the engine serves before `recover`, or if its sessions are not asked elsewhere."""
    servers = [Server("a"), Server("b")]
    newest = WeightTicket(backend="inprocess", version=7)

    async def recover(restarted: Engine) -> None:
        await restarted.pause()
        await restarted.load_weights(newest)
        await restarted.resume()

    client = TokenClient([server.engine for server in servers], probe_s=0.001, recover=recover)
    await client.pause_all()
    await client.load_weights(newest)
    await client.resume_all()
    notes: list[str] = []
    keeper = Keeper(client, servers, note=notes.append, look_s=0.001, back_off_s=0.001)
    keeping = asyncio.create_task(keeper.run())
    await servers[0].kill()
    await until(lambda: keeper.restarts["a"] == 1)
    generation = await client.generate([1], SAMPLING, "s")
    assert set(generation.policy_versions) == {7}
    await until(lambda: client.balancer.state("a") is EngineState.ACTIVE)
    assert servers[0].engine.loaded == [newest]
    assert keeper.restarts == {"a": 1, "b": 0}
    assert notes == ["a is started again: its process ended"]
    keeping.cancel()
    await client.close()


async def test_a_server_is_started_again_so_often_an_hour_and_again_in_the_next() -> None:
    """Fails if restarts are not counted, if the budget never recovers, or if one server's restarts
    are taken from another's."""
    servers = [Server("a", starts=lambda: servers[0].tries > 4), Server("b")]
    client = TokenClient([server.engine for server in servers], probe_s=0.001)
    notes: list[str] = []
    keeper = Keeper(
        client,
        servers,
        note=notes.append,
        restarts_per_hour=3,
        look_s=0.001,
        back_off_s=0.001,
        hour_s=1.0,
    )
    keeping = asyncio.create_task(keeper.run())
    await servers[0].kill()
    await until(lambda: any("the most that is tried" in note for note in notes))
    assert servers[0].tries == 3
    assert client.balancer.state("a") is EngineState.QUARANTINED
    assert await client.generate([1], SAMPLING, "s")
    await servers[1].kill()
    await until(lambda: keeper.restarts["b"] == 1 and servers[1].running)
    assert servers[0].tries == 3
    await until(lambda: client.active() == ["a", "b"])
    assert servers[0].tries == 5
    assert not keeping.done()
    keeping.cancel()
    await client.close()


async def test_a_server_that_is_stuck_is_started_again() -> None:
    """Fails if only processes that ended are started again: a stopped one runs for ever."""
    servers = [Server("a"), Server("b")]
    client = TokenClient([server.engine for server in servers], probe_s=60)
    notes: list[str] = []
    keeper = Keeper(client, servers, note=notes.append, look_s=0.001)
    keeping = asyncio.create_task(keeper.run())
    client.quarantine("a", "no token", stuck=True)
    await until(lambda: client.active() == ["a", "b"])
    assert notes == ["a is started again: it is stuck"]
    assert servers[0].tries == 1
    assert not client.is_stuck("a")
    keeping.cancel()
    await client.close()


async def test_whatever_goes_wrong_with_one_server_the_others_are_watched_on() -> None:
    """Fails if an error that is not ours (no process, no log file) or one of the client ends the
    watch of all servers without a word."""

    class Unstartable(Server):
        async def start_again(self) -> Engine:
            self.tries += 1
            raise OSError(11, "Resource temporarily unavailable")

    class Unseen(Server):
        async def alive(self) -> bool:
            raise OSError("no answer")

    servers = [Unstartable("a"), Server("b"), Unseen("c"), Server("nobody's")]
    client = TokenClient([server.engine for server in servers[:3]], probe_s=0.001)
    notes: list[str] = []
    keeper = Keeper(
        client,
        servers,
        note=notes.append,
        restarts_per_hour=3,
        look_s=0.001,
        back_off_s=0.001,
    )
    keeping = asyncio.create_task(keeper.run())
    await servers[0].kill()
    await servers[3].kill()
    await until(lambda: sum("the most that is tried" in note for note in notes) == 2)
    assert servers[0].tries == 3
    await servers[1].kill()
    await until(lambda: keeper.restarts["b"] == 1 and servers[1].running)
    assert not keeping.done()
    keeping.cancel()
    await client.close()
