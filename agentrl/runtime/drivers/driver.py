"""The parts that every driver calls, and the loop that all drivers share.

A driver (`synchronous`, `asynchronous`, `tail_batching`) is a `StepLoop`: `run` and its step call
these parts, one a line, and no part calls back into it. Each part does one thing:

    position     steps done, cursor of the tasks      learner      trains the groups of a step
    rollouts     runs groups of tasks                 weights      brings new weights to the engines
    evaluator    scores every dataset                 log          one line of metrics a step
    checkpoints  saves steps                          pending      sampled, and trained by no step
    health       rules, detectors, pauses             failures     ends a run that cannot work
    decisions    end? evaluate? save?                 clock        time over all processes
    concurrency  bounds the rollouts at once

Drivers share the disk and its promises:

Resume: the stored trajectories of a step are its commit record. They are on disk, complete, before
the step trains, so a run that is killed anywhere loads its last checkpoint and trains the steps
after it again from their stored trajectories, with the same order, seeds and batches. No rollout of
a stored step is sampled twice and no task is skipped; only rollouts that were not stored yet are
lost. What is paid again is the training time (not the rollout time) since the last checkpoint.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.disk.full_disk import disk_full
from agentrl.disk.stored_groups import stored_names
from agentrl.errors import Outage, RunError
from agentrl.fit.reward_models.versions import RewardRefresher
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.metrics import MetricBag
from agentrl.metrics.run_clock import RunClock
from agentrl.runtime.drivers.checkpoint_keeper import CheckpointKeeper
from agentrl.runtime.drivers.concurrency import Concurrency
from agentrl.runtime.drivers.decisions import StepDecisions
from agentrl.runtime.drivers.evaluator import Evaluator
from agentrl.runtime.drivers.filters.pending_groups import PendingGroups
from agentrl.runtime.drivers.position import RunPosition
from agentrl.runtime.drivers.rollout_runner import RolloutRunner
from agentrl.runtime.drivers.step_learner import StepLearner
from agentrl.runtime.drivers.step_log import StepLog
from agentrl.runtime.drivers.weight_sync import EngineWeights
from agentrl.runtime.health.failure_watch import FailureWatch
from agentrl.runtime.health.run_health import RunHealth
from agentrl.runtime.progress import Progress
from agentrl.runtime.rank_restarts import RankLost
from agentrl.runtime.records import RunResult
from agentrl.runtime.scores import after_step
from agentrl.runtime.scoring.score_book import ScoreBook
from agentrl.runtime.stages import Stages
from agentrl.serving.engine_counts import ServingCounts

if TYPE_CHECKING:
    from agentrl.data import TrajectoryStore
    from agentrl.disk.run_directory import RunDir

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverParts:
    """All parts of a driver; see the table of this module."""

    run_dir: RunDir
    """Locked directory of the run."""
    stages: Stages
    """Stages that roll out, sample and learn."""
    store: TrajectoryStore
    """Stored groups, which a killed process left to be trained."""
    seed: int
    """Seed of training rollouts: `run.seed`, another one after each rollback."""
    concurrency: Concurrency
    """Bounds the rollouts at once."""
    position: RunPosition
    """Steps done and the cursor of the tasks."""
    clock: RunClock
    """Wall time of the run over all processes."""
    rollouts: RolloutRunner
    """Runs groups of tasks."""
    pending: PendingGroups
    """Sampled groups that no step has trained."""
    failures: FailureWatch
    """Ends a run in which nothing works."""
    learner: StepLearner
    """Trains the groups of a step."""
    weights: EngineWeights
    """Brings new weights to the engines."""
    engine_counts: ServingCounts
    """Turns, moves and failures of the engines in a step."""
    book: ScoreBook
    """Scores known so far."""
    evaluator: Evaluator
    """Scores every dataset."""
    checkpoints: CheckpointKeeper
    """Saves steps of the run."""
    health: RunHealth
    """Rules, detectors and pauses."""
    decisions: StepDecisions
    """Decides when to end, evaluate and save."""
    log: StepLog
    """Writes one line of metrics a step."""
    stop: StopSwitch
    """Stop request, set by a signal."""
    progress: Progress
    """The live view."""
    refresh: RewardRefresher | None = None
    """Keeps a reward model up to date; None where none is refreshed."""

    async def score_and_save(self, step: int) -> None:
        """Evaluate, log and save a step whose training was logged before, or step 0."""
        self.log.write_scores(step, await self.evaluator.evaluate(step))
        await self.checkpoints.save(step)

    async def note_scores(self, step: int, scores: Mapping[str, float]) -> None:
        """Log the scores of a step that others have followed, and add them to its checkpoint."""
        self.log.write_scores(step, scores)
        await self.checkpoints.score(step)

    def count_step(self, step: int, bag: MetricBag, *, began: float, fresh: bool) -> None:
        """Count a trained step, and add what the engines did and how long it took.

        Args:
            step: from 1.
            bag: takes the metrics.
            began: `clock.now()` when it began.
            fresh: it was rolled out, and not replayed.
        """
        self.position.finish(step)
        bag.merge(self.engine_counts.since_last(self.stages.engines.stats()))
        self.concurrency.note(bag)
        bag.merge(self.clock.note_step(self.clock.now() - began, fresh=fresh))

    async def apply_rules(
        self, step: int, *, drain: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Apply the rules to a logged step: warn, or pause the run after it.

        Args:
            step: training steps done.
            drain: lets groups in flight end before a pause; None where there are none.

        Raises:
            Interrupted: a signal ended the pause.
        """

        async def rest() -> None:
            if drain is not None:
                await drain()
            await self.checkpoints.save(step)
            await self.checkpoints.settle()

        self.clock.exclude(await self.health.apply_rules(step, rest))

    def end_as_ruled(self) -> None:
        """Record the rule that ends the training, if one does.

        Raises:
            RollBack: where that is what the rule says; nothing is rolled back yet.
        """
        self.health.end_training(
            self.position.done,
            cursor=self.position.cursor_state,
            elapsed_s=self.clock.elapsed_s,
        )

    @contextlib.contextmanager
    def aborted_logged(self) -> Iterator[None]:
        """However training ends, log the cost of what is trained by no step as aborted.

        Only a kill leaves no time for it.
        """
        try:
            yield
        except Exception:
            self._log_aborted()
            raise
        self._log_aborted()

    def _log_aborted(self) -> None:
        # Names only: a run that stops may not wait until all tokens of a step are read.
        stored = stored_names(self.store, "train", self.position.done + 1)
        self.log.write_last(self.pending.take_left_over(self.log.last_values, stored=stored))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The frame of a run: engines are shown, a signal saves the last finished step.

        Raises:
            Outage: no engine came back in time; the last finished step is saved.
            RunError: the disk is full.
        """
        watcher = asyncio.create_task(self._show_engines())
        try:
            yield
            await self.health.close(self.position.done, look=True)
        except Interrupted:
            await self._save_last()
            raise
        except Outage as error:
            await self._save_last()
            raise Outage(f"{after_step(self.position.done)}: {error}") from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise RunError(disk_full(self.run_dir.path, error)) from error
            raise
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            # However the run ends, nothing is left half-written.
            with contextlib.suppress(RankLost):
                await self.checkpoints.settle()
            await self.health.close(self.position.done, look=False)

    async def _save_last(self) -> None:
        """Save the last finished step of a run that ends, even if that costs it a rank."""
        with contextlib.suppress(RankLost):
            await self.checkpoints.save(self.position.done)
            await self.checkpoints.settle()

    async def _show_engines(self) -> None:
        """Show the engines and observe their caches once a second, until it is cancelled."""
        failed = False
        while True:
            try:
                stats = self.stages.engines.stats()
                self.progress.engines(stats)
                self.progress.finished_groups(*self.pending.waiting())
                self.concurrency.observe(stats)
            except Exception:  # recording boundary: what is shown must not end a run
                if not failed:
                    logger.exception("the engines could not be observed; said once")
                failed = True
            await asyncio.sleep(1.0)

    def write_result(self, reason: str) -> RunResult:
        """Write `result.json` of a run that has ended for this reason."""
        done = self.position.done
        result = RunResult(
            run_dir=self.run_dir.path,
            steps=done,
            reason=reason,
            comparisons=self.book.comparisons(done),
            elapsed_s=self.clock.elapsed_s,
            ruling=self.health.ruling(done),
        )
        self.run_dir.write_result(result.as_dict())
        return result


class StepLoop(abc.ABC):
    """The loop of a run, begun and ended alike by all drivers.

    A driver is its step. One that rolls out beside the training also overrides what is done about
    groups in flight, of which others have none.
    """

    _parts: DriverParts

    async def run(self) -> RunResult:
        """Train to the end and score the result; may be called once.

        Raises:
            Interrupted: a signal; the state of the last finished step is saved.
            RollBack: a rule asks for it; nothing is rolled back yet.
            RunError: nothing can be rolled out, or the disk is full.
        """
        parts, position = self._parts, self._parts.position
        async with parts.running():
            # Servers that were just started hold the model they were started with.
            await self._sync(MetricBag())
            if parts.decisions.evaluation_due(position.done):
                await self._serve_for_evaluation()
                await parts.score_and_save(position.done)
            await parts.apply_rules(position.done, drain=self._drain)
            with parts.aborted_logged():
                reason = await self._train_steps()
            parts.end_as_ruled()
            await self._serve_for_evaluation()
            await parts.score_and_save(position.done)
            await parts.checkpoints.finish()
        return parts.write_result(reason)

    @abc.abstractmethod
    async def _step(self, step: int) -> None:
        """Train one step, replayed or rolled out, and end it with `_end_step`."""

    async def _train_steps(self) -> str:
        """Train one step after the other; the reason to end."""
        while (reason := self._parts.decisions.reason_to_end()) is None:
            await self._step(self._parts.position.done + 1)
        return reason

    async def _end_step(self, step: int, bag: MetricBag, *, began: float, fresh: bool) -> None:
        """Count, log and score a trained step, save it where that is due, and apply the rules."""
        parts = self._parts
        parts.count_step(step, bag, began=began, fresh=fresh)
        if fresh:
            self._note_idle_time(bag)
        parts.log.show(step, bag.result())
        with parts.log.step_line(step, bag.result()) as scores:
            parts.weights.check()
            if parts.decisions.evaluation_due(step):
                scores.update(await self._score(step))
        if await parts.decisions.checkpoint_due(step):
            await parts.checkpoints.save(step)
        await parts.apply_rules(step, drain=self._drain)

    async def _sync(self, bag: MetricBag) -> None:
        await self._parts.weights.sync(bag)

    async def _score(self, step: int) -> Mapping[str, float]:
        """The scores of a step that are known when this returns."""
        return await self._parts.evaluator.evaluate(step)

    async def _serve_for_evaluation(self) -> None:  # noqa: B027 - nothing is in flight
        """Put the weights of the last step on the engines, and begin no training rollout."""

    async def _drain(self) -> None:  # noqa: B027 - nothing is in flight
        """Wait until what is in flight ends."""

    def _note_idle_time(self, bag: MetricBag) -> None:  # noqa: B027 - it waits for nothing else
        """Add how long the trainer and the engines waited for each other."""
