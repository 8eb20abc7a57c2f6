"""The asynchronous driver: rollouts go on while the trainer trains.

                        +----------------- fill -----------------+
                        v                                        |
    cursor --claim--> Rollouter --group--> TrajectoryQueue --batch--> train --every K--> sync
                        ^                                                                 |
                        +------------------------------ fill -----------------------------+

- A group that ends wakes the trainer, which takes a batch as soon as `choose_batch` finds one, and
  fills its own place among those in flight.
- The trainer waits for nothing else. What it trained frees no place until the next sync, which
  moves the allowance of the back-pressure on and fills.
- A sync is `EngineStage.sync`: pause, swap, resume. With `partial_rollout` conversations go on in
  the middle with the new weights. Without it no group begins until those in flight have ended, and
  only then the weights are swapped.
- A signal wakes whoever waits; an optimizer step, a sync and a checkpoint run to their end. Groups
  in flight are cancelled and clean up. They and those that are finished and not yet trained are
  part of no stored step: their tasks are the first to be rolled out again after a resume.

The modes of `schedule` are points of this one loop: trigger 1 with staleness 0 is on-policy, a
trigger above 1 streams off-policy, staleness above 0 overlaps, and one step off is trigger 1 with
staleness 1.

Evaluation: the weights of the step are synced first. Training rollouts in flight go on beside it
and none begins, so every token of a score comes from the version it is the score of.

Resume: as in `driver`, with one difference. Tasks do not end in their order, so a stored group
names its place in the task stream, and what the stored steps do not hold is rolled out first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from agentrl.data.queue import Entry, TrajectoryQueue
from agentrl.data.staleness import BackPressure, Pace, choose_batch, oldest_allowed
from agentrl.data.tasks.cursor import Claim
from agentrl.metrics import MetricBag
from agentrl.runtime.disk.stored_groups import stored_groups
from agentrl.runtime.drivers.driver import Driver
from agentrl.runtime.drivers.groups import stable_seed
from agentrl.runtime.drivers.rollouter import Rollouter
from agentrl.runtime.drivers.stream_order import commit_stored, group_name
from agentrl.runtime.drivers.token_ages import age_metrics, is_too_old
from agentrl.runtime.stages import GroupHandle
from agentrl.runtime.stop import Interrupted
from agentrl.types import TrajectoryGroup

Entries = Sequence[Entry[GroupHandle]]


class AsynchronousRun(Driver):
    """Trains a step as soon as enough groups are finished, and keeps others in flight."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `Driver`."""
        super().__init__(*args, **kwargs)
        rollout = self._config.rollout
        n, in_flight = rollout.n_samples_per_prompt, self._parts.in_flight
        self._pace = Pace.of(self._config.schedule, prompts_per_step=rollout.prompts_per_step)
        self._pressure = BackPressure(self._pace.limit, total=self._groups_to_make())
        self._queue: TrajectoryQueue[GroupHandle] = TrajectoryQueue(capacity=self._pace.limit)
        self._rollouter = Rollouter(
            self._run_group,
            cursor=commit_stored(self._parts, after=self._done),
            pressure=self._pressure,
            queue=self._queue,
            version=lambda: self._served,
            places=min(self._pace.limit, max(1, in_flight // n)),
        )
        # What engines sample between two syncs. They are not asked: one that is on its way back has
        # other weights, and takes no turn before it has these.
        self._served = self._stages.learner.version
        self._streams = False  # whether rollouts have begun; before, stored steps are replayed
        self._waits = False  # whether the trainer waits for groups; then those that end are shown

    async def _train_to_end(self) -> str:
        try:
            while (reason := self._reason_to_end()) is None:
                await self._step(self._done + 1)
            return reason
        finally:
            await self._rollouter.close()

    async def _step(self, step: int) -> None:
        began = time.monotonic()
        bag = MetricBag()
        stored = stored_groups(self._parts.store, "train", step)
        if stored:
            await self._replay(step, stored, bag)
        else:
            await self._train_next(step, bag)
        await self._finish_step(step, bag, began=began, fresh=not stored)

    async def _train_next(self, step: int, bag: MetricBag) -> None:
        await self._begin_stream(bag)
        self._rollouter.open()
        batch = await self._next_batch(step, bag)
        await self._learn(step, [entry.item for entry in batch], bag, stored=False)
        self._parts.cursor.commit(entry.index for entry in batch)
        self._pressure.train(self._pace.prompts_per_step)
        await self._swap_if_due(bag)

    async def _replay(self, step: int, stored: Sequence[TrajectoryGroup], bag: MetricBag) -> None:
        """Train what a killed process stored; its tasks were committed when this one began."""
        self._progress.phase("replay", sum(1 for group in stored for _ in group.rollouts()))
        groups = [self._stages.rollouts.adopt(group) for group in stored]
        self._note(groups, bag)
        await self._learn(step, groups, bag, stored=True)
        if self._stages.engines.shares_weights:
            await self._sync(bag)  # it was paused to learn

    # -- rollouts -----------------------------------------------------------------------------

    async def _begin_stream(self, bag: MetricBag) -> None:
        """Rollouts begin with the learner's weights, which replayed steps have moved."""
        if not self._streams:
            await self._sync(bag)
            self._streams = True

    async def _run_group(self, claim: Claim) -> GroupHandle:
        section = self._config.rollout
        n = section.n_samples_per_prompt
        handle = await self._stages.rollouts.run_group(
            claim.task,
            group_id=group_name(claim),
            n=n,
            sampling=self._sampling(section.temperature),
            seed=stable_seed(self._seed, "train", claim.index, claim.task.id),
        )
        self._unsettled.ended(handle)
        if self._waits:
            self._progress.advance(n, handle.report.tokens)
        return handle

    async def _next_batch(self, step: int, bag: MetricBag) -> Entries:
        """Wait for the groups of a step; those that are too old come with it, to be stored."""
        self._stop.check()
        size, n = self._pace.prompts_per_step, self._config.rollout.n_samples_per_prompt
        self._progress.phase("rollout", size * n)
        for entry in self._queue.entries[:size]:
            self._progress.advance(n, entry.item.report.tokens)
        began, self._waits = _now(), True
        batch: list[Entry[GroupHandle]] = []
        missing = size
        try:
            while missing:
                taken = await self._stop.guard(self._take(missing))
                old = sum(is_too_old(entry.item.report, self._oldest) for entry in taken)
                batch += taken
                missing -= len(taken) - old
                self._pressure.drop(old)
                self._rollouter.fill()
        finally:
            self._waits = False
        bag.sum("timing_s/wait", _now() - began)
        groups = [entry.item for entry in batch]
        self._watch.trained(step, [handle.report for handle in groups])
        self._note(groups, bag)
        return batch

    async def _take(self, size: int) -> Entries:
        return await self._queue.take(
            lambda entries: choose_batch(
                [entry.began for entry in entries],
                self._rollouter.running,
                size=size,
                version=self._stages.learner.version,
                lag_bound=self._pace.lag_bound,
            )
        )

    @property
    def _oldest(self) -> int | None:
        """Rollouts with a token of older weights are dropped; None drops none."""
        schedule = self._config.schedule
        dropped = schedule.stale == "drop"
        return oldest_allowed(schedule, self._stages.learner.version) if dropped else None

    # -- weights ------------------------------------------------------------------------------

    async def _sync(self, bag: MetricBag) -> None:
        await super()._sync(bag)
        self._served = self._stages.learner.version

    async def _swap_if_due(self, bag: MetricBag) -> None:
        if self._stages.learner.version - self._served < self._pace.trigger:
            return
        try:
            await self._swap(bag)
        except Interrupted:
            # The step is complete, and stays so without new weights on the engines; the next look
            # at the switch ends the run.
            return

    async def _swap(self, bag: MetricBag) -> None:
        """The learner's weights on the engines: at once, or when nothing is in flight.

        No group begins meanwhile, since engines take the weights at different moments.
        """
        was_open = self._rollouter.is_open
        self._rollouter.hold()
        if not self._pace.partial and self._rollouter.running:
            began = _now()
            await self._stop.guard(self._rollouter.drained())
            bag.sum("timing_s/drain", _now() - began)
        await self._sync(bag)
        self._pressure.sync()
        if was_open:
            self._rollouter.open()

    async def _evaluate(self, step: int) -> dict[str, float]:
        """As in `Driver`, with the weights of `step` and no training rollout beginning."""
        self._rollouter.hold()
        if self._reason_to_end() is not None:
            await self._rollouter.close()  # nothing more will be trained
        if self._stages.learner.version > self._served:
            await self._swap(MetricBag())
        return await super()._evaluate(step)

    async def _settle(self) -> None:
        """Let groups in flight end; the next batch begins others."""
        self._rollouter.hold()
        await self._stop.guard(self._rollouter.drained())

    # -- bookkeeping --------------------------------------------------------------------------

    def _groups_to_make(self) -> int:
        """Groups of all steps that are neither trained nor stored."""
        store = self._parts.store
        newer = (step for step in store.steps("train") if step > self._done)
        # A damaged file holds none, and its step is made again.
        stored = sum(bool(stored_groups(store, "train", step)) for step in newer)
        steps = self._config.train.steps - self._done - stored
        return steps * self._config.rollout.prompts_per_step

    def _note(self, groups: Sequence[GroupHandle], bag: MetricBag) -> None:
        reports = [handle.report for handle in groups]
        self._count(groups, bag)
        bag.merge(
            age_metrics(reports, version=self._stages.learner.version, oldest_version=self._oldest)
        )

    def _note_duration(self, began: float, bag: MetricBag, fresh: bool) -> None:
        super()._note_duration(began, bag, fresh)
        if fresh:
            values = bag.result()
            waited = values["timing_s/wait"] + values.get("timing_s/drain", 0.0)
            bag.mean("async/trainer_idle_share", waited, count=values["timing_s/step"])
            bag.mean("async/rollout_idle_share", self._rollouter.idle_share())
            bag.mean("async/queued", len(self._queue))
            bag.mean("async/running", len(self._rollouter.running))


def _now() -> float:
    return asyncio.get_running_loop().time()
