from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agentrl.engine import EngineHealth, WeightTicket
from agentrl.errors import EngineError, SyncError
from agentrl.serving.client import TokenClient
from agentrl.sync.choose import make_receiver
from agentrl.sync.coordinator import WeightSync
from agentrl.sync.disk.disk import DiskSender
from agentrl.sync.inprocess import InProcessSender
from agentrl.sync.relay.sender import RelaySender
from agentrl.sync.shm.shm import ShmSender
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams
from tests.sync.sync_weights import assert_same, nudged, weights


class ReceivingEngine(ScriptedEngine):
    """A scripted engine with a real receiver, which can be told to fail."""

    def __init__(self, name: str) -> None:
        super().__init__(["hello"], ByteTokenizer(), name=name)
        self.receiver: Any = None
        self.holds: dict[str, Any] = {}
        self.fail_load = self.fail_stage = self.down = False
        self.staged: list[tuple[int, bool]] = []
        """Version of each staged ticket, and if the engine was paused then."""
        self.paused = False
        self.versions_sampled: list[int] = []

    async def prepare_weights(self, backend: str, info: Mapping[str, Any]) -> None:
        self.must_be_up()
        self.receiver = self.receiver or make_receiver(backend)
        await asyncio.to_thread(self.receiver.connect, info)

    async def stage_weights(self, ticket: WeightTicket) -> None:
        if self.fail_stage:
            raise EngineError("no such call")
        self.staged.append((ticket.version, self.paused))

    async def load_weights(self, ticket: WeightTicket) -> None:
        self.must_be_up()
        if self.fail_load:
            raise SyncError(f"{self.name} does not want to")
        if ticket.backend != "inprocess":
            receiver = self.receiver or make_receiver(ticket.backend)

            def take() -> dict[str, Any]:
                return {name: tensor.clone() for name, tensor in receiver.receive(ticket)}

            self.holds = await asyncio.to_thread(take)
        await super().load_weights(ticket)

    async def pause(self) -> None:
        self.must_be_up()
        self.paused = True
        await super().pause()

    async def resume(self) -> None:
        self.must_be_up()
        self.paused = False
        await super().resume()

    async def health(self) -> EngineHealth:
        return EngineHealth(
            ready=not self.down, version=self.version, in_flight=0, detail="down" * self.down
        )

    def must_be_up(self) -> None:
        if self.down:
            raise EngineError(f"{self.name} is down")


Fleet = Callable[..., WeightSync]


@pytest.fixture
async def engines() -> list[ReceivingEngine]:
    return [ReceivingEngine(f"e{i}") for i in range(3)]


@pytest.fixture
async def fleet(engines) -> AsyncIterator[Fleet]:
    made: list[tuple[TokenClient, WeightSync]] = []

    def make(sender: Any, **options: Any) -> WeightSync:
        client = TokenClient(engines, probe_s=0.02)
        made.append((client, WeightSync(client, sender, **options)))
        return made[-1][1]

    yield make
    for client, sync in made:
        await client.close()
        await sync.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(params=["shm", "disk", "disk patches", "collective", "collective patches"])
def sender(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    every = 4 if "patches" in request.param else 1
    if request.param == "shm":
        return ShmSender()
    if "disk" in request.param:
        return DiskSender(tmp_path, dense_every=every)
    return RelaySender(bucket_bytes=100_000, dense_every=every, timeout_s=120)


def check(engines, sent, version: int) -> None:
    for engine in engines:
        assert engine.version == version, engine.name
        assert not engine.paused, engine.name
        assert_same(engine.holds.items(), sent)


async def test_every_engine_has_every_version(engines, fleet: Fleet, sender) -> None:
    sync = fleet(sender)
    await sync.connect()
    sent = weights(0)
    for version in range(1, 7):
        metrics = (await sync.push(lambda now=sent: now, version)).result()
        check(engines, sent, version)
        assert metrics["sync/replicas"] == 3
        assert metrics["sync/quarantined"] == 0
        assert metrics["sync/bytes"] > 0
        assert metrics["sync/pause_s"] >= metrics["sync/load_s"] > 0
        sent = nudged(sent, version)


async def test_weights_are_staged_before_the_pause(engines, fleet: Fleet, tmp_path: Path) -> None:
    """Fails if engines stop first, or if one that cannot stage is left out."""
    sync = fleet(DiskSender(tmp_path))
    await sync.connect()
    engines[1].fail_stage = True
    sent = weights(0)
    metrics = (await sync.push(lambda: sent, 1)).result()
    assert [engine.staged for engine in engines] == [[(1, False)], [], [(1, False)]]
    check(engines, sent, 1)
    assert metrics["sync/quarantined"] == 0
    assert metrics["sync/prepare_s"] >= 0


async def test_one_that_fails_is_set_aside_and_catches_up(engines, fleet: Fleet, sender) -> None:
    """Fails if the others wait for it, or it serves again with its old weights."""
    sync = fleet(sender)
    client = sync.client
    await sync.connect()
    sent = weights(0)
    await sync.push(lambda: sent, 1)
    engines[1].fail_load = True
    sent = nudged(sent, 1)
    metrics = (await sync.push(lambda: sent, 2)).result()
    assert sorted(client.active()) == ["e0", "e2"]
    assert (metrics["sync/replicas"], metrics["sync/quarantined"]) == (2, 1)
    check([engines[0], engines[2]], sent, 2)
    await asyncio.sleep(0.1)
    assert "e1" not in client.active()
    engines[1].fail_load = False
    if sender.streams:
        await asyncio.sleep(0.1)
        assert "e1" not in client.active()
        sent = nudged(sent, 2)
        await sync.push(lambda: sent, 3)
    await until(lambda: len(client.active()) == 3)
    check(engines, sent, 3 if sender.streams else 2)


async def test_one_that_is_down_does_not_hold_up_the_others(engines, fleet: Fleet, sender) -> None:
    sync = fleet(sender)
    await sync.connect()
    await sync.push(lambda: weights(0), 1)
    engines[0].down = True
    await sync.push(lambda: weights(1), 2)
    await sync.push(lambda: weights(2), 3)
    check(engines[1:], weights(2), 3)
    engines[0].down = False
    if sender.streams:
        await sync.push(lambda: weights(3), 4)
    await until(lambda: len(sync.client.active()) == 3)
    assert len({engine.version for engine in engines}) == 1
    assert not any(engine.paused for engine in engines)


async def test_if_all_fail_nothing_goes_on(engines, fleet: Fleet, sender) -> None:
    """Fails if an engine is resumed with the older version."""
    sync = fleet(sender)
    await sync.connect()
    await sync.push(lambda: weights(0), 1)
    for engine in engines:
        engine.fail_load = True
    with pytest.raises(SyncError, match="does not want to"):
        await sync.push(lambda: weights(1), 2)
    await asyncio.sleep(0.1)
    assert all(engine.paused for engine in engines)


async def test_weights_that_nobody_took_are_caught_up(engines, fleet: Fleet, tmp_path) -> None:
    """Fails if engines catch up with the version before: what is trained goes on from the newer."""
    sync = fleet(DiskSender(tmp_path))
    await sync.connect()
    await sync.push(lambda: weights(0), 1)
    for engine in engines:
        engine.fail_load = True
    with pytest.raises(SyncError, match="does not want to"):
        await sync.push(lambda: weights(1), 2)
    assert sync.client.version == 1
    for engine in engines:
        engine.fail_load = False
    await sync.client.start_over("nobody took version 2", limit_s=120)
    await until(lambda: len(sync.client.active()) == 3)
    check(engines, weights(1), 2)
    assert sync.client.version == 2


@pytest.mark.parametrize("noticed", [False, True])
async def test_the_only_engine_comes_back_with_the_next_broadcast(
    engines, fleet: Fleet, noticed: bool
) -> None:
    """Fails if a push needs somebody who serves, if the new process is taken for the one that was
    in the group, or if the wait for an engine is for one that serves: none can before the push."""
    del engines[1:]
    sync = fleet(RelaySender(bucket_bytes=100_000, timeout_s=120))
    client = sync.client
    await sync.connect()
    await sync.push(lambda: weights(1), 1)
    client.quarantine("e0", "its process ended")
    engines[0] = ReceivingEngine("e0")
    engines[0]._version = -1
    client.replace("e0", engines[0])
    if noticed:
        await client.start_over("version 2 reached no engine", limit_s=120)
        assert not client.active()
    assert client.version == 1
    metrics = (await sync.push(lambda: weights(2), 2)).result()
    check(engines, weights(2), 2)
    assert client.active() == ["e0"]
    assert metrics["sync/replicas"] == 1
    assert (await client.generate([1], SamplingParams(), "s")).policy_versions[-1] == 2


async def test_one_that_comes_back_between_broadcasts_is_met_again(engines, fleet: Fleet) -> None:
    """Fails if an engine that was started again before the first push is taken for the one that
    was in the group: it is set aside at every push."""
    sync = fleet(RelaySender(bucket_bytes=100_000, timeout_s=120))
    await sync.connect()
    engines[1] = ReceivingEngine("e1")
    sync.client.replace("e1", engines[1])
    await until(lambda: len(sync.client.active()) == 3)
    await sync.push(lambda: weights(1), 1)
    assert len(sync.client.active()) == 3
    check(engines, weights(1), 1)


async def test_a_late_joiner_takes_the_newest(engines, fleet: Fleet, tmp_path: Path) -> None:
    sync = fleet(DiskSender(tmp_path, dense_every=4))
    await sync.connect()
    sent = weights(0)
    for version in range(1, 4):
        sent = nudged(sent, version)
        await sync.push(lambda now=sent: now, version)
    late = ReceivingEngine("late")
    sync.client.add_engine(late)
    await until(lambda: "late" in sync.client.active())
    check([late], sent, 3)


async def test_staging_that_fails_pauses_nobody(engines, fleet: Fleet) -> None:
    sync = fleet(ShmSender(available=lambda: 100_000))
    with pytest.raises(SyncError, match="shared memory"):
        await sync.push(lambda: weights(0), 1)
    assert not any(engine.paused for engine in engines)
    assert (await sync.client.generate([1], SamplingParams(), "s")).ids


async def test_a_broadcast_that_fails_is_tried_again_in_a_new_group(engines, fleet: Fleet) -> None:
    """Fails if one engine that leaves in mid-broadcast costs the healthy ones their place."""

    class Leaves(ReceivingEngine):
        async def load_weights(self, ticket: WeightTicket) -> None:
            stream = self.receiver.receive(ticket)
            await asyncio.to_thread(next, stream)
            await asyncio.to_thread(stream.close)
            raise SyncError("left in mid-broadcast")

    engines[1] = Leaves("e1")
    sync = fleet(RelaySender(bucket_bytes=10_000, timeout_s=120))
    await sync.connect()
    await sync.push(lambda: weights(0), 1)
    check([engines[0], engines[2]], weights(0), 1)
    assert sorted(sync.client.active()) == ["e0", "e2"]


async def test_nothing_moves_in_process(engines, fleet: Fleet) -> None:
    sync = fleet(InProcessSender())
    await sync.connect()

    def unread():
        raise AssertionError("nobody reads the weights")
        yield

    metrics = (await sync.push(unread, 1)).result()
    assert metrics["sync/bytes"] == 0
    assert [engine.version for engine in engines] == [1, 1, 1]


async def test_mode_wait_lets_turns_end(engines, fleet: Fleet) -> None:
    sync = fleet(InProcessSender(), drain_limit_s=0.6)
    for engine in engines:
        engine._delay_s = 0.1
    turn = asyncio.create_task(sync.client.generate([1], SamplingParams(), "s"))
    await until(lambda: any(engine.in_flight for engine in engines))
    await sync.push(lambda: [], 1, mode="wait")
    assert turn.done()
    assert set(turn.result().policy_versions) == {0}
    for engine in engines:
        engine._delay_s = 1.0
    turn = asyncio.create_task(sync.client.generate([1], SamplingParams(), "s"))
    await until(lambda: any(engine.in_flight for engine in engines))
    with pytest.raises(SyncError, match=r"still in flight after 0\.6 s"):
        await sync.push(lambda: [], 2, mode="wait")
    assert not any(engine.paused for engine in engines)
    await turn


async def test_a_backend_that_does_not_reach_an_engine_is_said_first(engines, fleet: Fleet) -> None:
    engines[2].down = True
    with pytest.raises(SyncError, match="backend 'shm' does not reach e2: e2 is down"):
        await fleet(ShmSender()).connect()
