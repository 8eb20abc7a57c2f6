"""The engines of a run on Ray, without Ray: what workers are told when something fails."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, cast

import pytest

from agentrl.metrics import MetricBag
from agentrl.runtime.ray import engine_stage
from agentrl.runtime.ray.engine_stage import RayEngines
from agentrl.runtime.ray.rank_failure import RankFailure
from agentrl.runtime.ray.worker_group import Mode, WorkerGroup, dispatch
from agentrl.serving import TokenClient
from tests.runtime.driver_fakes import FakeClient
from tests.runtime.ray.test_rank_failure import Life, Living


class Told:
    """An actor class that is told who serves."""

    @dispatch(Mode.BROADCAST)
    async def serve_from(self, engines: Sequence[Any], left: Collection[str]) -> None: ...

    @dispatch(Mode.BROADCAST)
    async def hold_turns(self, held: bool) -> None: ...

    @dispatch(Mode.BROADCAST)
    async def stats(self) -> dict[str, Any]: ...


class Worker:
    """Its handle, which notes what it is told; `broken` of its answers are of no known kind."""

    def __init__(self, *, broken: int) -> None:
        self.broken = broken
        self.told: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        worker = self

        class Method:
            async def remote(self, *args: Any) -> Any:
                worker.told.append((name, args[0] if args else None))
                if name != "hold_turns" and worker.broken:
                    worker.broken -= 1
                    raise RuntimeError("a broken invariant")
                return {}

        return Method()


class Client(FakeClient):
    def active(self) -> list[str]:
        return []

    def names(self) -> list[str]:
        return []


def engines_of(worker: Worker) -> RayEngines:
    async def push(version: int) -> MetricBag:
        return MetricBag()

    ranks = WorkerGroup(Living, [Life()], name="trainer rank")
    return RayEngines(
        cast(TokenClient, Client(0)),
        WorkerGroup(Told, [worker], name="worker"),
        push,
        RankFailure(ranks),
        addresses={},
        shared=False,
    )


async def test_turns_go_on_after_a_sync_whatever_telling_the_workers_meets() -> None:
    """Fails if the clocks of all turns stand still for good."""
    worker = Worker(broken=1)
    engines = engines_of(worker)
    with pytest.raises(RuntimeError, match="a broken invariant"):
        await engines.sync(1)
    assert worker.told == [("hold_turns", True), ("serve_from", ()), ("hold_turns", False)]
    assert not engines.held


async def test_one_look_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if workers never hear of another engine again."""
    monkeypatch.setattr(engine_stage, "LOOK_S", 0.01)
    worker = Worker(broken=2)
    watching = asyncio.ensure_future(engines_of(worker).watch())
    async with asyncio.timeout(120):
        while worker.told.count(("stats", None)) < 4:
            assert not watching.done(), watching
            await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
