"""The asynchronous driver: rollouts go on while the trainer trains.

                        +----------------- fill -----------------+
                        v                                        |
    cursor --claim--> Rollouter --group--> TrajectoryQueue --batch--> train --every K--> sync
                        ^                                                                 |
                        +------------------------------ fill -----------------------------+

    loop         produces                waits for                          unblocked by
    Rollouter    finished groups         a slot (back-pressure, engines)    fill: a batch, a sync
    trainer      weights of a step       `choose_batch` to find a batch     a group that ends
    sync         weights on the engines  the evaluation of those before;    what is in flight, as it
                                         whole rollouts to end, unless      ends
                                         `partial_rollout`
    evaluation   scores of a step        its weights on the engines         the sync before it

- What the trainer trained frees no slot until the next sync, which moves the allowance of the
  back-pressure on and fills.
- Groups that are too old or that the dynamic filter drops come with the batch, to be stored, and it
  takes others in their place; these slots are free at once.
- A sync is `EngineStage.sync`: pause, swap, resume. With `partial_rollout` conversations go on in
  the middle with the new weights. Without it no group begins until those in flight have ended, and
  only then the weights are swapped.
- A signal ends every wait; an optimizer step, a sync and a checkpoint run to their end. Groups
  in flight are cancelled and clean up. They and those that are finished and not yet trained are
  part of no stored step: their tasks are the first to be rolled out again after a resume.

The modes of `schedule` are points of this one loop: trigger 1 with staleness 0 is on-policy, a
trigger above 1 streams off-policy, staleness above 0 overlaps, and one step off is trigger 1 with
staleness 1.

Evaluation: the weights of the step are synced first, and the next sync waits for its end, so every
token of a score comes from the version it is the score of. Training goes on meanwhile, as far as
the back-pressure allows (`evaluation_beside`). Where it cannot (`why_training_stops`), and before
the first and after the last step, rollouts in flight go on, none begins, and nothing is trained.

Resume: as in `driver`, with one difference. Tasks do not end in their order, so a stored group
names its position in the task stream, and what the stored steps do not hold is rolled out first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agentrl.config.fleet import ScheduleSection
from agentrl.config.reward import RewardSection
from agentrl.config.schema import RolloutSection
from agentrl.data.queue import Entry, TrajectoryQueue
from agentrl.data.staleness import BackPressure, Pace, choose_batch, oldest_allowed
from agentrl.data.tasks.cursor import Claim
from agentrl.disk.stored_groups import stored_groups
from agentrl.metrics import MetricBag
from agentrl.runtime.drivers.driver import DriverParts, StepLoop
from agentrl.runtime.drivers.filters.dynamic_filter import Refill
from agentrl.runtime.drivers.filters.token_ages import age_metrics
from agentrl.runtime.drivers.groups import note_rollouts, note_speed
from agentrl.runtime.drivers.rollouter import Rollouter
from agentrl.runtime.rank_restarts import RankLost
from agentrl.runtime.scoring.evaluation_beside import EvaluationBeside
from agentrl.runtime.stages import GroupHandle
from agentrl.types import TrajectoryGroup

Entries = Sequence[Entry[GroupHandle]]


class AsynchronousRun(StepLoop):
    """Trains a step as soon as enough groups are finished, and keeps others in flight."""

    def __init__(
        self,
        parts: DriverParts,
        *,
        rollout: RolloutSection,
        reward: RewardSection,
        schedule: ScheduleSection,
        steps: int,
        beside: bool = False,
    ) -> None:
        """Begin nothing yet.

        Args:
            parts: standing where earlier processes of the run have stopped.
            rollout: groups of a step and rollouts of a group.
            reward: which groups are replaced, and how often.
            schedule: how far rollouts may run ahead.
            steps: as `train.steps`.
            beside: training goes on while a step is evaluated; see `why_training_stops`.
        """
        self._parts, self._section, self._schedule = parts, rollout, schedule
        self._reward = reward
        self._pace = Pace.of(schedule, prompts_per_step=rollout.prompts_per_step)
        self._pressure = BackPressure(self._pace.limit, total=self._groups_to_make(steps))
        self._queue: TrajectoryQueue[GroupHandle] = TrajectoryQueue(capacity=self._pace.limit)
        parts.position.commit_stored(parts.store)
        self._rollouter = Rollouter(
            self._run_group,
            cursor=parts.position.cursor,
            pressure=self._pressure,
            queue=self._queue,
            version=lambda: self._served,
            limit=parts.concurrency.limit,
            n=rollout.n_samples_per_prompt,
            most=self._pace.limit,
        )
        # What engines sample between two syncs. They are not asked: one that is on its way back has
        # other weights, and takes no turn before it has these.
        self._served = parts.stages.learner.version
        self._beside = beside
        self._evaluation = EvaluationBeside(
            lambda step: parts.evaluator.evaluate(step, beside=True),
            scored=parts.note_scores,
            stop=parts.stop,
            progress=parts.progress,
        )
        self._streams = False  # rollouts have begun; before, stored steps are replayed
        self._waits = False  # the trainer waits for groups; then those that end are shown

    async def _train_steps(self) -> str:
        again_after: int | None = None
        parts = self._parts
        try:
            reason = await super()._train_steps()
            if not parts.health.rolls_back(parts.position.done):
                await self._evaluation.finish()
            return reason
        except RankLost:
            again_after = parts.checkpoints.saved
            raise
        finally:
            closing = asyncio.ensure_future(self._close_in_flight(again_after))
            await parts.stop.cleaned_up(closing)

    async def _step(self, step: int) -> None:
        parts, bag, began = self._parts, MetricBag(), self._parts.clock.now()
        stored = stored_groups(parts.store, "train", step)
        if stored:
            await self._replay(step, stored, bag)
        else:
            await self._train_next(step, bag)
        await self._end_step(step, bag, began=began, fresh=not stored)

    async def _train_next(self, step: int, bag: MetricBag) -> None:
        began = _now()
        await self._begin_stream(bag)
        self._rollouter.open()
        batch = await self._next_batch(step, bag)
        groups = [entry.item for entry in batch]
        await self._parts.learner.train(step, groups, bag, stored=False)
        note_speed(bag, groups, self._parts.stages, seconds=_now() - began)
        self._parts.position.cursor.commit(entry.index for entry in batch)
        self._pressure.train(self._pace.prompts_per_step)
        await self._swap_if_due(bag)

    async def _replay(self, step: int, stored: Sequence[TrajectoryGroup], bag: MetricBag) -> None:
        """Train what a killed process stored; its tasks were committed when this one began."""
        parts = self._parts
        parts.progress.phase("replay", sum(1 for group in stored for _ in group.rollouts()))
        groups = [parts.stages.rollouts.adopt(group) for group in stored]
        self._note_groups(groups, bag)
        await parts.learner.train(step, groups, bag, stored=True)
        if parts.stages.engines.shares_weights:
            await self._sync(bag)  # it was paused to learn

    # -- rollouts -----------------------------------------------------------------------------

    async def _begin_stream(self, bag: MetricBag) -> None:
        """Rollouts begin with the learner's weights, which replayed steps have moved."""
        if not self._streams:
            await self._sync(bag)
            self._streams = True

    async def _run_group(self, claim: Claim) -> GroupHandle:
        handle = await self._parts.rollouts.run_claim(claim)
        self._parts.pending.add(handle)
        if self._waits:
            self._parts.progress.advance(self._section.n_samples_per_prompt, handle.report.tokens)
        return handle

    async def _next_batch(self, step: int, bag: MetricBag) -> Entries:
        """Wait for the groups of a step; those that others replace come with it, to be stored."""
        parts, began = self._parts, _now()
        batch: list[Entry[GroupHandle]] = []
        refill = Refill(self._reward, oldest_version=self._oldest)
        missing = self._pace.prompts_per_step
        while missing:
            taken = await self._take(missing)
            batch += taken
            missing = refill.replaced(entry.item.report for entry in taken)
            self._pressure.drop(missing)
            self._rollouter.fill()
        refill.note(bag)
        bag.sum("timing_s/wait", _now() - began)
        groups = [entry.item for entry in batch]
        parts.failures.trained(step, [handle.report for handle in groups])
        self._note_groups(groups, bag)
        return batch

    async def _take(self, size: int) -> Entries:
        """Wait for `size` groups, and show those that end meanwhile."""
        self._parts.stop.check()
        progress, n = self._parts.progress, self._section.n_samples_per_prompt
        progress.phase("rollout", size * n)
        for entry in self._queue.entries[:size]:
            progress.advance(n, entry.item.report.tokens)
        self._waits = True
        try:
            return await self._parts.stop.guard(self._queue.take(self._choose(size)))
        finally:
            self._waits = False

    def _choose(self, size: int) -> Callable[[Entries], Sequence[int] | None]:
        """The choice of `size` groups that keeps the bound on age."""
        return lambda entries: choose_batch(
            [entry.began for entry in entries],
            self._rollouter.running,
            size=size,
            per_step=self._pace.prompts_per_step,
            version=self._learner_version,
            lag_bound=self._pace.lag_bound,
        )

    @property
    def _oldest(self) -> int | None:
        """Rollouts with a token of older weights are dropped; None drops none."""
        dropped = not self._schedule.masks_stale
        return oldest_allowed(self._schedule, self._learner_version) if dropped else None

    # -- weights ------------------------------------------------------------------------------

    @property
    def _learner_version(self) -> int:
        return self._parts.stages.learner.version

    async def _sync(self, bag: MetricBag) -> None:
        await self._evaluation.finish()
        await self._parts.weights.sync(bag)
        self._served = self._learner_version

    async def _swap_if_due(self, bag: MetricBag) -> None:
        behind = self._learner_version - self._served
        if behind < self._pace.trigger:
            return
        if self._evaluation.in_flight and self._may_stay(behind):
            return
        with self._parts.weights.step_stays_complete():
            await self._swap(bag)

    def _may_stay(self, behind: int) -> bool:
        """Another step may be trained before a sync, by the bound on age and the groups it has."""
        bound, pace = self._schedule.lag_limit, self._pace
        oldest = pace.lag_bound if bound is None else bound
        enough = (behind + 1) * pace.prompts_per_step <= pace.limit
        return enough and oldest is not None and behind <= oldest

    async def _swap(self, bag: MetricBag) -> None:
        """Put the learner's weights on the engines: at once, or when nothing is in flight.

        No group begins meanwhile, since engines take the weights at different moments. An
        evaluation in flight ends first: its tokens are of the weights before.
        """
        if self._evaluation.in_flight:
            began = _now()
            await self._evaluation.finish()
            bag.sum("timing_s/evaluation_wait", _now() - began)
        was_open = self._rollouter.is_open
        self._rollouter.hold()
        if not self._pace.partial and self._rollouter.running:
            began = _now()
            await self._parts.stop.guard(self._rollouter.drained())
            bag.sum("timing_s/drain", _now() - began)
        await self._sync(bag)
        self._pressure.sync()
        if was_open:
            self._rollouter.open()

    async def _score(self, step: int) -> dict[str, float]:
        """Evaluate a step, or begin to; the scores that are known when this returns."""
        await self._serve_for_evaluation()
        if not self._beside or self._parts.decisions.reason_to_end() is not None:
            return await self._parts.evaluator.evaluate(step)
        self._evaluation.start(step)
        return {}

    async def _close_in_flight(self, again_after: int | None) -> None:
        """Cancel an evaluation and groups in flight, and wait until they have cleaned up."""
        self._parts.pending.add_stage_counts()  # what a cancelled evaluation has cost is dropped
        try:
            await self._evaluation.close(again_after=again_after)
        finally:
            await self._rollouter.close()

    async def _serve_for_evaluation(self) -> None:
        """Put the weights of the last step on the engines, and begin no training rollout."""
        await self._evaluation.finish()
        self._rollouter.hold()
        if self._parts.decisions.reason_to_end() is not None:
            await self._rollouter.close()  # nothing more will be trained
        if self._learner_version > self._served:
            await self._swap(MetricBag())

    async def _drain(self) -> None:
        """Wait until what is in flight ends; the next batch begins other groups."""
        self._rollouter.hold()
        await self._evaluation.finish()
        await self._parts.stop.guard(self._rollouter.drained())

    # -- metrics ------------------------------------------------------------------------------

    def _groups_to_make(self, steps: int) -> int:
        """Groups of all steps that are neither trained nor stored."""
        store, done = self._parts.store, self._parts.position.done
        newer = (step for step in store.steps("train") if step > done)
        # A damaged file holds none, and its step is made again.
        stored = sum(bool(stored_groups(store, "train", step)) for step in newer)
        return (steps - done - stored) * self._section.prompts_per_step

    def _note_groups(self, groups: Sequence[GroupHandle], bag: MetricBag) -> None:
        note_rollouts(bag, groups, n=self._section.n_samples_per_prompt)
        reports = [handle.report for handle in groups]
        version = self._learner_version
        bag.merge(
            age_metrics(
                reports,
                version=version,
                oldest_version=self._oldest,
                oldest_token=oldest_allowed(self._schedule, version),
            )
        )

    def _note_idle_time(self, bag: MetricBag) -> None:
        values = bag.result()
        waited = values["timing_s/wait"] + sum(
            values.get(f"timing_s/{name}", 0.0) for name in ("drain", "evaluation_wait")
        )
        bag.mean("async/trainer_idle_share", waited, count=values["timing_s/step"])
        bag.mean("async/rollout_idle_share", self._rollouter.idle_share())
        bag.mean("async/queued", len(self._queue))
        bag.mean("async/running", len(self._rollouter.running))


def _now() -> float:
    return asyncio.get_running_loop().time()
