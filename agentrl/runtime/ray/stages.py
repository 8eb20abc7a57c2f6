"""The stages of a run over groups of actors.

driver --task--> worker      --report--> driver          a few hundred bytes
                   `--group--> shared memory --> ranks   never through the driver
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from agentrl.batch.ledger import note_aborted
from agentrl.errors import RunError, StepAbandoned, TrainError
from agentrl.metrics import MetricBag
from agentrl.rollout.under_way.in_flight import InFlightReport, merged
from agentrl.runtime.ray.rank_failure import RankFailure
from agentrl.runtime.ray.rollout_workers import Workers
from agentrl.runtime.ray.worker_group import ActorLost, WorkerGroup, divide
from agentrl.runtime.stages import GroupHandle, GroupReport, report_of
from agentrl.types import SamplingParams, Task, TrajectoryGroup

logger = logging.getLogger(__name__)

GROUP_ATTEMPTS = 3
"""Workers that may die under one group before the group counts as the reason."""
CANCEL_S = 60.0
"""Seconds that a cancelled group has to release environments and sandboxes."""
PROGRESS_S = 0.3
"""Seconds between two looks at the progress of a training step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteGroup:
    """A group in the shared memory of some machine."""

    report: GroupReport
    """Report of the group, which the driver reads."""
    ref: Any
    """Ray's reference. The group lives as long as a reference is held, in any process."""


class RayRollouts:
    """The `RolloutStage` of a run on Ray, over workers that may die."""

    def __init__(self, workers: Workers, rank_failure: RankFailure) -> None:
        """Keep the workers; a group takes as long as its rollouts, which have limits of their own.

        Args:
            workers: run groups.
            rank_failure: ends what is under way when a rank dies.
        """
        self._workers, self._rank_failure = workers, rank_failure
        self._counts = MetricBag()

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> RemoteGroup:
        """Run a group; one whose worker dies is run again by another, with the same seed.

        Raises:
            RunError: the group has cost several workers, none is left, or a rank died.
        """
        return await self._rank_failure.guard(self._run(task, group_id, n, sampling, seed))

    async def _run(
        self, task: Task, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> RemoteGroup:
        group = self._workers.group
        for _ in range(GROUP_ATTEMPTS):
            await self._workers.usable()
            asked = [group.handle(index) for index in range(len(group))]
            try:
                report, ref = await group.run_group(task, group_id, n, sampling, seed)
                return RemoteGroup(report=report, ref=ref)
            except asyncio.CancelledError:
                await self._cancel(group_id)
                raise
            except ActorLost as error:
                logger.warning("group %s is run again: %s", group_id, error)
                self._counts.sum("rollout/groups_run_again", 1)
                if group.handle(error.index) is asked[error.index]:  # not replaced since
                    self._workers.lost(error.index)
        raise RunError(
            f"{GROUP_ATTEMPTS} rollout workers died or hung one after the other while they ran "
            f"group {group_id}; most likely the environment of task {task.id!r} takes all memory, "
            "ends its process, or blocks the event loop. Look into logs/ of the run"
        )

    def adopt(self, group: TrajectoryGroup) -> RemoteGroup:
        """Handle of a group that is in the driver, as only a replay has."""
        import ray

        return RemoteGroup(report=report_of(group), ref=ray.put(group))

    def counts(self) -> MetricBag:
        """`counts` as in `RolloutStage.counts`."""
        bag, self._counts = self._counts, MetricBag()
        if lost := self._workers.take_lost():
            bag.sum("rollout/workers_lost", lost)
        return bag

    async def in_flight(self, most: int) -> InFlightReport:
        """Rollouts in flight on all workers that answer, with the `most` oldest by name."""
        group = self._workers.group
        calls = (group.one(index, "in_flight", most) for index in group.usable)
        found = await asyncio.gather(*calls, return_exceptions=True)
        return merged((one for one in found if isinstance(one, InFlightReport)), most)

    async def _cancel(self, group_id: str) -> None:
        """Cancel the group on every worker; one that is gone has nothing to report."""
        group = self._workers.group
        calls = (group.one(index, "cancel", group_id) for index in group.usable)
        try:
            async with asyncio.timeout(CANCEL_S):
                said = await asyncio.gather(*calls, return_exceptions=True)
        except TimeoutError:
            logger.warning("group %s has not cleaned up within %g s", group_id, CANCEL_S)
            return
        for cancelled in said:
            if not isinstance(cancelled, BaseException):
                note_aborted(self._counts, tokens=cancelled[0], seconds=cancelled[1])


class RayLearner:
    """A `LearnStage` over trainer ranks; all calls raise `RankLost` once one of them has died."""

    def __init__(
        self, ranks: WorkerGroup, rank_failure: RankFailure, *, version: int, why_whole: str = ""
    ) -> None:
        """Take the ranks.

        Args:
            ranks: of `TrainerActor`.
            rank_failure: reports that one died.
            version: of their weights.
            why_whole: why every rank prepares whole steps; empty if each prepares its share.
        """
        self._why_whole, self._began_early = why_whole, False
        self._ranks, self._rank_failure = ranks, rank_failure
        self._version, self._mid_step = version, False
        self._abandoning: asyncio.Future[Any] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def version(self) -> int:
        """`version` as in `LearnStage.version`."""
        return self._version

    @property
    def mid_step(self) -> bool:
        """`mid_step` as in `LearnStage.mid_step`."""
        return self._mid_step

    async def learn_early(
        self, step: int, minibatch: int, groups: Mapping[int, GroupHandle]
    ) -> None:
        """`learn_early` as in `LearnStage.learn_early`."""
        refs = [cast(RemoteGroup, group).ref for group in groups.values()]
        self._began_early = True
        prepare = self._ranks.prepare_early(step, minibatch, list(groups), refs)
        if any(await self._rank_failure.guard(prepare)):
            self._mid_step = True
            await self._rank_failure.guard(self._ranks.learn_early())

    async def learn(
        self,
        step: int,
        groups: Sequence[GroupHandle],
        *,
        stored: bool,
        on_progress: Callable[[int, int], None],
    ) -> MetricBag:
        """`learn` as in `LearnStage.learn`."""
        bag = MetricBag()
        refs = [cast(RemoteGroup, group).ref for group in groups]
        if not stored:
            await self._rank_failure.guard(self._ranks.remove_stored(step, "train"))
        prepared = await self._prepare(step, groups, refs, stored=stored)
        watch = asyncio.ensure_future(self._watch(on_progress))
        try:
            learned = await self._rank_failure.guard(self._ranks.learn())
        except TrainError as error:
            if self._abandoning is None:
                raise
            await self._abandoning
            # One rank has given up; the others say which one it was.
            self._mid_step = any(await self._rank_failure.guard(self._ranks.give_up()))
            raise StepAbandoned(str(error)) from error
        finally:
            watch.cancel()
        # Every rank says the same of the whole step, and something of its share.
        bag.merge(prepared[0][0])
        for _, own in prepared:
            bag.merge(own)
        bag.merge(learned[0])
        self._version, self._mid_step, self._began_early = self._version + 1, False, False
        return bag

    async def _prepare(
        self, step: int, groups: Sequence[GroupHandle], refs: Sequence[Any], *, stored: bool
    ) -> list[tuple[MetricBag, MetricBag]]:
        """By rank its metrics: those of the whole step, and those of its share."""
        # Updates that were made early are those of a whole batch, bit for bit.
        if self._why_whole or self._began_early:
            return await self._rank_failure.guard(self._ranks.prepare(step, refs, stored))
        parts = divide(refs, [group.report.length for group in groups], len(self._ranks))
        outlines = await self._rank_failure.guard(self._ranks.outline(parts, step))
        return await self._rank_failure.guard(
            self._ranks.prepare_share(step, outlines, refs, stored)
        )

    def abandon(self) -> None:
        """`abandon` as in `LearnStage.abandon`."""
        self._abandoning = asyncio.ensure_future(self._rank_failure.guard(self._ranks.abandon()))

    async def keep(self, step: int, kind: str, groups: Sequence[GroupHandle]) -> None:
        """`keep` as in `LearnStage.keep`."""
        refs = [cast(RemoteGroup, group).ref for group in groups]
        await self._rank_failure.guard(self._ranks.remove_stored(step, kind))
        await self._rank_failure.guard(self._ranks.keep(refs, step, kind))

    async def hold(self) -> Callable[[Path], None]:
        """See `LearnStage`; every rank writes its part into the shared folder."""
        await self._rank_failure.guard(self._ranks.hold())
        return self._write

    def _write(self, folder: Path) -> None:
        writing = asyncio.run_coroutine_threadsafe(
            self._rank_failure.guard(self._ranks.write(folder.absolute())), self._loop
        )
        if failed := [error for error in writing.result() if error is not None]:
            raise failed[0]

    async def _watch(self, on_progress: Callable[[int, int], None]) -> None:
        """Pass progress on, a few times a second however fast the ranks are."""
        seen = (0, 0)
        while True:
            await asyncio.sleep(PROGRESS_S)
            try:
                done = tuple(await self._ranks.progress())
            except ActorLost:
                return
            if done != seen and done[1]:
                seen = cast(tuple[int, int], done)
                on_progress(*seen)
