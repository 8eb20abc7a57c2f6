"""Actors that give no sign of life, without Ray: ended once, and never while they only wait."""

import asyncio
from typing import Any

from agentrl.runtime.ray.heartbeat import Heartbeat
from agentrl.runtime.ray.worker_group import ActorLost, Mode, WorkerGroup, dispatch

LIMIT_S = 0.4


class Beating:
    """An actor class with a beat."""

    @dispatch(Mode.BROADCAST)
    async def beat(self) -> None: ...


class Pulse:
    """Its handle: how the next beats are answered."""

    def __init__(self) -> None:
        self.silent = False
        self.dead = False
        self.asked = 0
        self.excused = 0

    @property
    def beat(self) -> Any:
        return self

    async def remote(self) -> None:
        self.asked += 1
        if self.dead:
            raise ActorLost("gone", -1)
        if self.excused:
            self.excused -= 1
            await asyncio.sleep(10)
        if self.silent:
            await asyncio.Event().wait()


class Watched:
    """Two actors and what became of them."""

    def __init__(self) -> None:
        self.pulses = [Pulse(), Pulse()]
        self.group = WorkerGroup(Beating, self.pulses, name="worker")
        self.ended: list[Pulse] = []
        self.lost: list[int] = []
        self.heartbeat = Heartbeat(self.group, limit_s=LIMIT_S, lost=self._note_lost, end=self._end)

    def _note_lost(self, index: int) -> None:
        self.lost.append(index)
        self.group.retire(index)

    def _end(self, pulse: Pulse) -> None:
        self.ended.append(pulse)
        pulse.dead = True

    async def for_limits(self, count: float) -> None:
        """Watch for so many limits."""
        watching = asyncio.ensure_future(self.heartbeat.watch())
        await asyncio.sleep(count * LIMIT_S)
        watching.cancel()
        (result,) = await asyncio.gather(watching, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError), result


async def test_a_silent_actor_is_ended_once_and_the_other_stays() -> None:
    watched = Watched()
    watched.pulses[1].silent = True
    await watched.for_limits(6)
    assert watched.ended == [watched.pulses[1]]
    assert watched.lost == [1]
    assert watched.pulses[0].asked > 4


async def test_one_late_beat_is_excused() -> None:
    """Fails if a driver that stood still itself takes its own pause for that of a worker."""
    watched = Watched()
    watched.pulses[0].excused = 1
    await watched.for_limits(4)
    assert watched.ended == []
    assert watched.lost == []


async def test_an_actor_that_died_unseen_is_reported_and_not_ended() -> None:
    """Fails if a worker that dies while it has no group is noticed with the next group only."""
    watched = Watched()
    watched.pulses[0].dead = True
    await watched.for_limits(4)
    assert watched.lost == [0]
    assert watched.ended == []


async def test_what_fails_for_one_actor_ends_the_listening_to_none() -> None:
    """Fails if an error that nobody thought of leaves every actor without a watch."""
    watched = Watched()
    watched.pulses[0].dead = True

    def lost(index: int) -> None:
        watched.lost.append(index)
        raise RuntimeError("a broken invariant")

    watched.heartbeat = Heartbeat(watched.group, limit_s=LIMIT_S, lost=lost)
    await watched.for_limits(4)
    assert len(watched.lost) > 1
    assert watched.pulses[1].asked > 4


async def test_the_actor_that_takes_the_place_of_one_is_listened_to() -> None:
    watched = Watched()
    watched.pulses[1].silent = True
    watching = asyncio.ensure_future(watched.heartbeat.watch())
    while not watched.ended:
        await asyncio.sleep(0.01)
    second = Pulse()
    watched.group.replace(1, second)
    while second.asked < 3:
        await asyncio.sleep(0.01)
    second.silent = True
    while second not in watched.ended:
        await asyncio.sleep(0.01)
    assert watched.lost == [1, 1]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
