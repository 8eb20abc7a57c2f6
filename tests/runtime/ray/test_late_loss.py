"""What a group says of a worker that died, after another has taken its place; without Ray."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from agentrl.runtime.ray.rank_failure import RankFailure
from agentrl.runtime.ray.rollout_workers import Workers
from agentrl.runtime.ray.stages import RayRollouts
from agentrl.runtime.ray.worker_group import ActorLost, Mode, WorkerGroup, dispatch
from agentrl.types import SamplingParams, Task
from tests.runtime.ray.test_rank_failure import Life, Living


class Running:
    """An actor class that runs groups."""

    @dispatch(Mode.LEAST_LOADED, returns=2)
    async def run_group(self, *args: Any) -> Any: ...


class Worker:
    """Its handle: answers when `gate` is set, as one that is gone if `dead`."""

    def __init__(self, *, dead: bool) -> None:
        self.dead = dead
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    @property
    def run_group(self) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._remote))

    def _remote(self, *args: Any) -> tuple[Any, Any]:
        return self._answer(), "where the group is"

    async def _answer(self) -> str:
        self.asked.set()
        await self.gate.wait()
        if self.dead:
            raise ActorLost("gone", -1)
        return "report"


async def test_a_death_that_is_told_late_does_not_cost_the_next_worker() -> None:
    """Fails if the healthy worker is retired for the one whose place it took."""
    old, new = Worker(dead=True), Worker(dead=False)
    new.gate.set()
    group = WorkerGroup(Running, [old], name="worker")
    started: list[int] = []
    workers = Workers(group, started.append, open_limit_s=1.0)
    ranks = WorkerGroup(Living, [Life()], name="trainer rank")
    rollouts = RayRollouts(workers, RankFailure(ranks))
    running = asyncio.ensure_future(
        rollouts.run_group(
            cast(Task, SimpleNamespace(id="t")),
            group_id="g",
            n=1,
            sampling=cast(SamplingParams, None),
            seed=0,
        )
    )
    async with asyncio.timeout(120):
        await old.asked.wait()
        group.replace(0, new)  # its beats were missed first
        old.gate.set()
        handle = await running
    assert handle.ref == "where the group is"
    assert group.usable == [0]
    assert started == []
    assert "rollout/workers_lost" not in rollouts.counts().result()
