from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError
from agentrl.sync import broadcast as broadcast_module
from agentrl.sync.broadcast import broadcast
from agentrl.sync.transfer import NotAllCame, SendFailed, Weights
from agentrl.testing import ByteTokenizer, ScriptedEngine

Engines = dict[str, Any]


class StuckSender:
    """A streaming sender whose send ends as it is told, or when it is aborted."""

    backend = "stuck"
    streams = True

    def __init__(self, *, error: Exception | None = None, stuck: bool = False) -> None:
        self.aborted = threading.Event()
        self.ended = threading.Event()
        self._error, self._stuck = error, stuck

    def connect(self, receivers: int) -> Sequence[Mapping[str, Any]]:
        return [{}] * receivers

    def announce(self, version: int) -> WeightTicket:
        return WeightTicket(backend=self.backend, version=version)

    def send(self, weights: Weights, version: int) -> WeightTicket:
        try:
            if self._stuck and self.aborted.wait(60):
                raise NotAllCame("aborted")
            if self._error is not None:
                raise self._error
            return self.announce(version)
        finally:
            self.ended.set()

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        """Nothing is open."""


class DeafSender(StuckSender):
    """One whose trainer hangs, so that nothing reaches it."""

    def send(self, weights: Weights, version: int) -> WeightTicket:
        self.ended.wait(60)
        raise SyncError("the trainer goes on at last")

    def abort(self) -> None:
        self.ended.wait(60)

    async def let_go(self) -> None:
        """End its threads, before their event loop is closed."""
        self.ended.set()
        for thread in threading.enumerate():
            if thread.name.startswith("compute-"):
                await asyncio.to_thread(thread.join)


class SlowSender(StuckSender):
    """One that is asked over a network."""

    def announce(self, version: int) -> WeightTicket:
        time.sleep(0.5)
        return super().announce(version)


class LoadingEngine(ScriptedEngine):
    """Takes weights as it is told."""

    def __init__(self, *, error: BaseException | None = None, stuck: bool = False) -> None:
        super().__init__(["hello"], ByteTokenizer())
        self.cancelled = False
        self._error, self._stuck = error, stuck

    async def load_weights(self, ticket: WeightTicket) -> None:
        if self._stuck:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        if self._error is not None:
            raise self._error
        await self.pause()
        await super().load_weights(ticket)


async def test_an_engine_that_does_not_end_is_cancelled_and_named() -> None:
    """Fails if one engine that hangs after the last bucket holds up the others for ever."""
    engines: Engines = {"well": LoadingEngine(), "hung": LoadingEngine(stuck=True)}
    sent = await broadcast(StuckSender(), engines, [], 3, limit_s=0.1)
    assert sent.ticket is not None
    assert sent.culprits == sent.failed.keys() == {"hung"}
    assert "did not load version 3 within 0.1 s" in str(sent.failed["hung"])
    assert engines["well"].version == 3
    assert engines["hung"].cancelled


async def test_an_engine_that_fails_aborts_the_send() -> None:
    """Fails if the sender goes on to wait for an engine that will not come."""
    sender = StuckSender(stuck=True)
    engines: Engines = {"well": LoadingEngine(), "ill": LoadingEngine(error=SyncError("no room"))}
    async with asyncio.timeout(120):
        sent = await broadcast(sender, engines, [], 1, limit_s=3600)
    assert sent.ticket is None
    assert (sent.culprits, str(sent.failed["ill"])) == ({"ill"}, "no room")


async def test_engines_that_the_sender_blames_are_cancelled_at_once() -> None:
    """Fails if a hung engine costs the limit twice: once to the sender and once to the engines."""
    error = SendFailed("rank 1 stopped")
    error.culprits = [0]
    # As one that was raised in another process.
    sender = StuckSender(error=pickle.loads(pickle.dumps(error)))
    engines: Engines = {"hung": LoadingEngine(stuck=True), "well": LoadingEngine()}
    async with asyncio.timeout(120):
        sent = await broadcast(sender, engines, [], 1, limit_s=3600)
    assert (sent.ticket, sent.culprits) == (None, {"hung"})
    assert str(sent.failed["hung"]) == "rank 1 stopped"


async def test_a_cancelled_sync_leaves_nothing_running() -> None:
    """Fails if the thread of the send or the request of an engine outlives the sync."""
    sender, engine = StuckSender(stuck=True), LoadingEngine(stuck=True)
    sync = asyncio.ensure_future(broadcast(sender, {"e": engine}, [], 1, limit_s=60))
    await asyncio.sleep(0.05)
    sync.cancel()
    async with asyncio.timeout(120):
        with pytest.raises(asyncio.CancelledError):
            await sync
    assert sender.ended.is_set()
    assert engine.cancelled


async def test_a_mistake_in_the_code_is_not_the_fault_of_an_engine() -> None:
    """Fails if any error at all quarantines engines."""
    with pytest.raises(ZeroDivisionError):
        await broadcast(
            StuckSender(error=ZeroDivisionError()), {"e": LoadingEngine()}, [], 1, limit_s=5
        )


async def test_a_send_that_no_abort_reaches_is_an_error_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if a trainer that hangs makes the coordinator hang."""
    monkeypatch.setattr(broadcast_module, "ABORT_LIMIT_S", 0.2)
    sender, well = DeafSender(), LoadingEngine(stuck=True)
    engines: Engines = {"well": well, "ill": LoadingEngine(error=SyncError("no room"))}
    try:
        async with asyncio.timeout(120):
            with pytest.raises(SyncError, match=r"did not end within 0\.2 s of its abort"):
                await broadcast(sender, engines, [], 1, limit_s=3600)
        assert well.cancelled
    finally:
        await sender.let_go()


async def test_a_cancelled_sync_does_not_wait_for_a_trainer_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if Ctrl-C blocks, or becomes another error."""
    monkeypatch.setattr(broadcast_module, "ABORT_LIMIT_S", 0.2)
    sender, engine = DeafSender(), LoadingEngine(stuck=True)
    sync = asyncio.ensure_future(broadcast(sender, {"e": engine}, [], 1, limit_s=60))
    await asyncio.sleep(0.1)
    sync.cancel()
    try:
        async with asyncio.timeout(120):
            with pytest.raises(asyncio.CancelledError):
                await sync
        assert engine.cancelled
    finally:
        await sender.let_go()


async def test_a_sender_that_is_slow_to_announce_stops_nothing_else() -> None:
    """Fails if the event loop waits for an answer of the trainer."""
    sync = asyncio.ensure_future(broadcast(SlowSender(), {"e": LoadingEngine()}, [], 1, limit_s=5))
    ticks = 0
    while not sync.done():
        await asyncio.sleep(0.02)
        ticks += 1
    assert ticks > 10
    assert sync.result().ticket is not None


@pytest.mark.parametrize("stuck", [True, False])
async def test_a_request_that_is_cancelled_inside_is_a_failure_of_its_engine(stuck: bool) -> None:
    """Fails if it looks as if the sync were cancelled."""
    engine = LoadingEngine(error=asyncio.CancelledError())
    engines: Engines = {"well": LoadingEngine(), "ill": engine}
    async with asyncio.timeout(120):
        sent = await broadcast(StuckSender(stuck=stuck), engines, [], 1, limit_s=3600)
    assert (sent.ticket is None, sent.culprits) == (stuck, {"ill"})
    assert str(sent.failed["ill"]) == "its request was cancelled"
