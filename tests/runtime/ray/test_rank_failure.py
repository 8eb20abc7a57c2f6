"""The reason that a driver gives when a call to its ranks fails, without Ray."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from agentrl.errors import EngineError, RanksParted, SyncError, TrainError
from agentrl.machine.processes.stop import Interrupted
from agentrl.runtime.rank_restarts import RankLost
from agentrl.runtime.ray import rank_failure
from agentrl.runtime.ray.rank_failure import RankFailure
from agentrl.runtime.ray.worker_group import ActorLost, Mode, WorkerGroup, dispatch


class Living:
    """An actor class whose processes can be waited for."""

    @dispatch(Mode.BROADCAST)
    async def until_closed(self) -> None: ...


class Life:
    """Its handle: lives until `end` is set."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    @property
    def until_closed(self) -> Any:
        return self

    async def remote(self) -> None:
        await self.end.wait()
        raise ActorLost("trainer rank is gone: killed", -1)


class Watched:
    """Two ranks, the first of which dies `dies_after_s` after the call has failed."""

    def __init__(self) -> None:
        self.lives = [Life(), Life()]
        self.group = WorkerGroup(Living, self.lives, name="trainer rank")
        self.failure = RankFailure(self.group)

    async def guard(self, work: Awaitable[Any]) -> Any:
        watching = asyncio.ensure_future(self.failure.watch())
        try:
            return await self.failure.guard(work)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def fails(self, error: Exception, *, dies_after_s: float | None) -> None:
        if dies_after_s is not None:
            asyncio.get_running_loop().call_later(dies_after_s, self.lives[0].end.set)
        raise error


@pytest.mark.parametrize(
    "error",
    [
        RanksParted("rank 1 of 2 failed while summing gradients"),
        RuntimeError("Connection closed by peer"),
        ActorLost("trainer rank 0 is gone", 0),
        SyncError("no engine has the weights"),
        EngineError("pause failed on embedded-1"),
    ],
)
async def test_what_the_other_ranks_say_of_a_death_is_not_taken_for_its_reason(
    error: Exception,
) -> None:
    """The rank that was left alone fails first. Fails if its error ends the run, or if a dead rank
    is asked to close."""
    watched = Watched()
    with pytest.raises(RankLost, match="is gone: killed"):
        await watched.guard(watched.fails(error, dies_after_s=0.1))
    assert watched.group.usable == [1]


async def test_an_error_of_ranks_that_live_is_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a number that must not be trained on waits for a death, or counts as one."""
    monkeypatch.setattr(rank_failure, "DEATH_KNOWN_S", 0.2)
    watched = Watched()
    with pytest.raises(TrainError, match="not finite"):
        await watched.guard(watched.fails(TrainError("a loss is not finite"), dies_after_s=None))
    with pytest.raises(RanksParted, match="summing"):
        await watched.guard(watched.fails(RanksParted("summing"), dies_after_s=None))


async def test_a_signal_is_passed_on_at_once() -> None:
    """Fails if the grace period of a run is spent on a death that nobody has died."""
    watched = Watched()
    async with asyncio.timeout(rank_failure.DEATH_KNOWN_S / 2):
        with pytest.raises(Interrupted):
            await watched.guard(watched.fails(Interrupted(15), dies_after_s=None))


async def test_a_call_under_way_is_cancelled_when_a_rank_dies() -> None:
    watched, cancelled = Watched(), asyncio.Event()

    async def endless() -> None:
        asyncio.get_running_loop().call_later(0.05, watched.lives[1].end.set)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(RankLost):
        await asyncio.wait_for(watched.guard(endless()), 120)
    assert cancelled.is_set()
    assert watched.group.usable == [0]
