"""A change that no engine took: the fleet waits for one to come back instead of ending the run."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.engine import Engine, WeightTicket
from agentrl.errors import EngineError, SyncError
from agentrl.metrics import MetricBag
from agentrl.runtime.local import LocalEngines
from agentrl.serving import TokenClient
from agentrl.testing import ByteTokenizer, ScriptedEngine


def engine(version: int = 0) -> ScriptedEngine:
    return ScriptedEngine(["hello"], ByteTokenizer(), name="only", version=version)


def ticket(version: int) -> WeightTicket:
    return WeightTicket(backend="inprocess", version=version)


async def test_a_sync_that_reached_nobody_is_tried_again_when_the_server_is_back() -> None:
    """Fails if the fleet stays paused after the failure: nobody may come back then."""
    first = engine(version=1)

    async def recover(restarted: Engine) -> None:
        await restarted.pause()
        if restarted.version < 1:
            await restarted.load_weights(ticket(1))
        await restarted.resume()

    client = TokenClient([first], probe_s=0.001, recover=recover)
    tries = 0

    async def push(version: int) -> MetricBag:
        nonlocal tries
        tries += 1
        if tries == 1:
            await client.pause_all()
            await first.close()
            asyncio.get_running_loop().call_later(0.01, client.replace, "only", engine(-1))
            raise SyncError("version 2 reached no engine")
        await client.pause_all()
        await client.load_weights(ticket(version))
        await client.resume_all()
        return MetricBag()

    engines = LocalEngines(client, push, shared=False, patience_s=5.0)
    await engines.sync(2)
    assert (tries, client.version, client.active()) == (2, 2, ["only"])
    await client.close()


async def test_waiting_has_an_end() -> None:
    """Fails if the run would wait for ever for a server that nobody starts."""
    client = TokenClient([engine()], probe_s=0.001, recover=None)
    client.recover = never
    with pytest.raises(EngineError, match=r"no engine came back within 0\.05 s: gone"):
        await client.start_over("gone", limit_s=0.05)
    await client.close()


async def never(_: Engine) -> None:
    raise EngineError("still down")
