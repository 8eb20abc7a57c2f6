"""A rank that dies while the stages are opened is told from one that dies later; without Ray."""

import asyncio
import contextlib
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentrl.errors import RunError
from agentrl.runtime.rank_restarts import RankLost, RankLostAtStart
from agentrl.runtime.ray import launch
from agentrl.runtime.ray.actors import RunActors
from agentrl.runtime.ray.worker_group import ActorLost, Mode, WorkerGroup, dispatch
from tests.runtime.ray.test_rank_failure import Life, Living


class Starting:
    """Stands for `RunActors`: two ranks, one of which dies in the opening, when it is at `at`."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.lives = [Life(), Life()]

    def start_ranks(self, stack: contextlib.AsyncExitStack) -> WorkerGroup:
        return WorkerGroup(Living, self.lives, name="trainer rank")

    def start_servers(self, stack: contextlib.AsyncExitStack) -> None: ...

    def start_workers(self, stack: contextlib.AsyncExitStack) -> None: ...

    async def opened(self, ranks: object, servers: object) -> tuple[list[Any], list[Any]]:
        await self.reach("models")
        return [SimpleNamespace(policy_copy=b"")], []

    async def open_fleet(self, *args: object, **kwargs: object) -> Any:
        await self.reach("fleet")
        return SimpleNamespace(addresses={})

    async def opened_workers(self, workers: object, engines: object, copy: bytes) -> list[Any]:
        await self.reach("workers")
        return []

    async def reach(self, place: str) -> None:
        if place == self.at:
            self.lives[1].end.set()
            await asyncio.Event().wait()

    beside = staticmethod(RunActors.beside)


@pytest.mark.parametrize("place", ["models", "fleet", "workers"])
async def test_a_rank_that_dies_while_anything_is_opened_is_a_rank_lost_at_the_start(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Fails if the rest of the opening waits for it, or if the run could not go on."""
    actors = Starting(place)
    monkeypatch.setattr(launch, "open_fleet", actors.open_fleet)
    async with asyncio.timeout(120), contextlib.AsyncExitStack() as stack:
        with pytest.raises(RankLostAtStart, match="is gone: killed; it died while the run started"):
            await launch._open(cast(RunActors, actors), stack, print, no_check)


async def no_check(url: str, backend: str) -> None:
    """Take any server."""


class Opened:
    """An actor class that is opened."""

    @dispatch(Mode.RANK_ZERO)
    async def meet(self) -> str: ...

    @dispatch(Mode.BROADCAST)
    async def open(self, meeting: str = "") -> None: ...


class Opening:
    """Its handle: dies when it is opened, or is opened for ever."""

    def __init__(self, *, dies: bool) -> None:
        self.dies = dies

    @property
    def meet(self) -> Any:
        return SimpleNamespace(remote=self._met)

    @property
    def open(self) -> Any:
        return SimpleNamespace(remote=self._open)

    async def _met(self) -> str:
        return "here"

    async def _open(self, *args: object) -> None:
        if not self.dies:
            await asyncio.Event().wait()
        raise ActorLost("it is gone: killed", -1)


async def test_only_a_rank_that_dies_in_its_opening_counts_as_one() -> None:
    """Fails if what the call to the rank says first hides that it was a rank."""
    actors = object.__new__(RunActors)
    actors._limit_s = 10.0
    ranks = WorkerGroup(Opened, [Opening(dies=True)], name="trainer rank")
    with pytest.raises(RankLost, match="killed"):
        await actors.opened(ranks, None)
    servers = WorkerGroup(Opened, [Opening(dies=True)], name="vLLM actor")
    living = WorkerGroup(Opened, [Opening(dies=False)], name="trainer rank")
    with pytest.raises(RunError, match="it died while it started") as caught:
        await actors.opened(living, servers)
    assert not isinstance(caught.value, RankLost)


async def test_what_fails_beside_the_run_is_logged_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fails if a watch that is gone is known at the end of the run only."""

    async def watch() -> None:
        raise RuntimeError("a broken invariant")

    async with contextlib.AsyncExitStack() as stack:
        with caplog.at_level(logging.ERROR):
            RunActors.beside(stack, watch())
            await asyncio.sleep(0.01)
        (record,) = caplog.records
        assert "watch has ended beside the run" in record.getMessage()
        assert "a broken invariant" in caplog.text
    assert len(caplog.records) == 1
