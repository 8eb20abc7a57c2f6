"""Rollouts and engines of a local run whose rollout workers are child processes.

driver --task--> child     --packed group--> driver   unpacked in the thread that trains on it
                   `-- turns over HTTP --> engines    never through the driver
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from agentrl.batch.ledger import note_aborted
from agentrl.errors import RunError
from agentrl.metrics import MetricBag
from agentrl.rollout.under_way.in_flight import InFlightReport, merged
from agentrl.runtime.assembly.local_stages import LocalEngines
from agentrl.runtime.children.packed_group import PackedGroup
from agentrl.runtime.children.worker_child import WorkerLost
from agentrl.runtime.children.workers import ChildWorkers
from agentrl.runtime.colocated.turns import TurnTaking
from agentrl.runtime.engine_wait import Push
from agentrl.runtime.stages import HeldGroup
from agentrl.serving import TokenClient
from agentrl.serving.records import EngineStats, added
from agentrl.types import SamplingParams, Task, TrajectoryGroup

logger = logging.getLogger(__name__)

GROUP_ATTEMPTS = 3
"""Workers that may die under one group before the group counts as the reason."""
CANCEL_S = 60.0
"""Seconds that a cancelled group has to release environments and sandboxes."""
LOOK_S = 1.0
"""Seconds between two looks at which engines serve."""


class ChildRollouts:
    """The `RolloutStage` of a run whose workers are children that may die."""

    def __init__(self, workers: ChildWorkers) -> None:
        self._workers = workers
        self._counts = MetricBag()

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> PackedGroup:
        """Run a group; one whose worker dies is run again by another, with the same seed.

        Raises:
            RunError: the group has cost several workers, or none is left.
        """
        for _ in range(GROUP_ATTEMPTS):
            child = await self._workers.take()
            try:
                return await child.ask("run_group", task, group_id, n, sampling, seed)
            except asyncio.CancelledError:
                await asyncio.shield(self._cancel(child, group_id))
                raise
            except WorkerLost as error:
                logger.warning("group %s is run again: %s", group_id, error)
                self._counts.sum("rollout/groups_run_again", 1)
                self._workers.note_lost(child)
            finally:
                child.in_flight -= 1
        raise RunError(
            f"{GROUP_ATTEMPTS} rollout workers died one after the other while they ran group "
            f"{group_id}; most likely the environment of task {task.id!r} takes all memory, or "
            "ends its process. Look into logs/worker-*.log of the run"
        )

    def adopt(self, group: TrajectoryGroup) -> HeldGroup:
        """`adopt` as in `RolloutStage.adopt`."""
        return HeldGroup.of(group)

    def counts(self) -> MetricBag:
        """`counts` as in `RolloutStage.counts`."""
        bag, self._counts = self._counts, MetricBag()
        if lost := self._workers.take_lost():
            bag.sum("rollout/workers_lost", lost)
        return bag

    async def in_flight(self, most: int) -> InFlightReport:
        """Rollouts in flight in all children, with the `most` oldest by name."""
        found = await self._workers.ask_all("in_flight", most)
        return merged((one for one in found if isinstance(one, InFlightReport)), most)

    async def _cancel(self, child: Any, group_id: str) -> None:
        """Cancel the group; a worker that is gone has nothing to report."""
        try:
            async with asyncio.timeout(CANCEL_S):
                tokens, seconds = await child.ask("cancel", group_id)
        except WorkerLost:
            return
        except TimeoutError:
            logger.warning("group %s has not cleaned up within %g s", group_id, CANCEL_S)
            return
        note_aborted(self._counts, tokens=tokens, seconds=seconds)


class EngineNews:
    """Passes on between driver and workers: which engines serve, and what they were asked."""

    def __init__(self, workers: ChildWorkers, names: Callable[[], Collection[str]]) -> None:
        """Keep the workers, which were opened with the engines that serve now.

        Args:
            workers: ask the engines.
            names: of all engines of the run at this moment, those that failed included.
        """
        self._workers, self._names = workers, names
        self._announced, self._used_by_all = workers.engines(), True
        self._seen: list[Mapping[str, EngineStats]] = []

    async def announce(self) -> None:
        """Point all workers at exactly the engines that serve, at the versions of their weights."""
        left = {entry.name for entry in self._announced} - set(self._names())
        self._announced = serving = self._workers.engines()
        self._used_by_all = True
        for result in await self._workers.ask_all("serve_from", serving, left):
            if isinstance(result, WorkerLost):
                logger.info("engines: a worker is gone: %s", result)
            elif isinstance(result, Exception):
                # Asked again within a second; until then it uses the others.
                logger.warning("engines: a worker does not use all that serve: %s", result)
                self._used_by_all = False

    async def hold_turns(self, held: bool) -> None:
        """Stop the clocks of turns while the engines are paused, or start them again."""
        await self._workers.hold_turns(held)

    async def watch(self) -> None:
        """Announce what has changed, and ask for counts; runs until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._used_by_all or self._workers.engines() != self._announced:
                await self.announce()
            results = await self._workers.ask_all("stats")
            self._seen = [result for result in results if isinstance(result, Mapping)]

    def counted(self, own: Mapping[str, EngineStats]) -> Mapping[str, EngineStats]:
        """Records of engines with what the workers have asked of them, at most a second old."""
        return {name: added(own[name], (s[name] for s in self._seen if name in s)) for name in own}


class ChildEngines(LocalEngines):
    """The `EngineStage` of a run whose workers are children: control here, turns there."""

    def __init__(
        self,
        client: TokenClient,
        push: Push,
        news: EngineNews,
        *,
        wait_s: float = 0.0,
        turns: TurnTaking | None = None,
    ) -> None:
        """Keep the engines and the way to the workers that ask them.

        Args:
            client: of the driver, for pauses, weights and health.
            push: as `LocalEngines`.
            news: to workers with connections of their own.
            wait_s: as `LocalEngines`.
            turns: as `LocalEngines`.
        """
        super().__init__(client, push, shared=False, wait_s=wait_s, turns=turns)
        self._news = news

    async def pause(self) -> None:
        """`pause` as in `EngineStage.pause`."""
        await self._news.hold_turns(True)
        await super().pause()

    async def sync(self, version: int) -> MetricBag:
        """`sync` as in `EngineStage.sync`."""
        await self._news.hold_turns(True)
        try:
            return await super().sync(version)
        finally:
            await self._news.announce()
            await self._news.hold_turns(False)

    def stats(self) -> Mapping[str, EngineStats]:
        """`stats` as in `EngineStage.stats`; at most a second old."""
        return self._news.counted(super().stats())
