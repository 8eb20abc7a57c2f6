"""The parts that every driver calls, and the two ends of a run that all drivers share.

A driver (`synchronous`, `asynchronous`, `tail_batching`) is a plain class: its `run` and its step
call these parts, one a line, and nothing calls back into it. Each part does one thing:

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

import asyncio
import contextlib
import errno
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.config import RunConfig
from agentrl.disk.stored_groups import stored_names
from agentrl.errors import Outage, RunError
from agentrl.fit.reward_models.versions import RewardRefresher
from agentrl.health.history import flat_config
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.metrics import MetricBag
from agentrl.runtime.drivers.checkpoint_keeper import CheckpointKeeper, disk_full
from agentrl.runtime.drivers.concurrency import Concurrency
from agentrl.runtime.drivers.decisions import StepDecisions
from agentrl.runtime.drivers.engine_counts import ServingCounts
from agentrl.runtime.drivers.evaluator import Evaluator
from agentrl.runtime.drivers.groups import stable_seed
from agentrl.runtime.drivers.pending_groups import PendingGroups
from agentrl.runtime.drivers.position import RunPosition
from agentrl.runtime.drivers.rollout_runner import RolloutRunner
from agentrl.runtime.drivers.run_clock import RunClock
from agentrl.runtime.drivers.step_learner import StepLearner
from agentrl.runtime.drivers.step_log import StepLog
from agentrl.runtime.drivers.weight_sync import EngineWeights
from agentrl.runtime.health.failure_watch import FailureWatch
from agentrl.runtime.health.outage_retries import OutageRetries
from agentrl.runtime.health.run_health import RunHealth
from agentrl.runtime.progress import Progress
from agentrl.runtime.rank_restarts import RankLost
from agentrl.runtime.records import Parts, RunHistory, RunResult
from agentrl.runtime.scoring.score_book import ScoreBook, last_value
from agentrl.runtime.stages import Stages

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
        """Let the rules warn of a step that is logged, or pause the run after it.

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
            raise Outage(f"after step {self.position.done}: {error}") from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise RunError(disk_full(self.run_dir.path, error)) from error
            raise
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            await self.health.close(self.position.done, look=False)

    async def _save_last(self) -> None:
        """Save the last finished step of a run that ends, even if that costs it a rank."""
        with contextlib.suppress(RankLost):
            await self.checkpoints.save(self.position.done)

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


def make_driver_parts(
    config: RunConfig,
    run_dir: RunDir,
    parts: Parts,
    *,
    history: RunHistory,
    progress: Progress,
    stop: StopSwitch,
    now: Callable[[], float] = time.monotonic,
) -> DriverParts:
    """Make the parts of a driver, standing where earlier processes of the run have stopped.

    Args:
        config: of the run.
        run_dir: its locked directory.
        parts: the opened stages and the disk.
        history: what earlier processes left.
        progress: notified of what happens.
        stop: ends the run.
        now: a clock that never goes back, in seconds.
    """
    stages, store = parts.stages, parts.store
    stages.engines.guard = stop.guard
    seed = config.run.seed
    if history.rollbacks.count:
        # The same rollouts from the same weights would end where the last ones did.
        seed = stable_seed(seed, "rollback", history.rollbacks.count)
    position = RunPosition(parts.cursor, parts.leaps, done=history.done)
    rolling = OutageRetries(stages.rollouts, stages.engines)
    pending = PendingGroups(rolling)
    step_s = last_value(history.logged, "timing_s/step")
    clock = RunClock(config.train.max_minutes, elapsed_s=history.elapsed_s, step_s=step_s, now=now)
    book = ScoreBook(
        parts.eval_tasks, store, n_samples=config.eval.n_samples, logged=history.logged, now=now
    )
    failures = FailureWatch(worked=history.done > 0, note=progress.note)
    health = RunHealth(
        config.health,
        run_dir,
        history,
        settings=flat_config(config),
        progress=progress,
        stop=stop,
    )
    checkpoints = CheckpointKeeper(
        run_dir,
        config.checkpoint,
        learner=stages.learner,
        position=position,
        book=book,
        protected=health.protected,
        clock=clock,
        progress=progress,
        refresh=parts.refresh,
    )
    # The embedded engine keeps its rows by itself, and decodes between the trainer's steps.
    serving = config.serving
    concurrency = Concurrency(
        parts.in_flight,
        slots_per_engine=None if serving.engine == "embedded" else serving.max_batch_size,
    )
    rollouts = RolloutRunner(
        rolling,
        config.rollout,
        stop_token_ids=stages.stop_token_ids,
        limit=concurrency.limit,
        seed=seed,
        stop=stop,
        progress=progress,
    )
    return DriverParts(
        run_dir=run_dir,
        stages=stages,
        store=store,
        seed=seed,
        concurrency=concurrency,
        position=position,
        clock=clock,
        rollouts=rollouts,
        pending=pending,
        failures=failures,
        learner=StepLearner(
            stages,
            pending=pending,
            position=position,
            clock=clock,
            stop=stop,
            progress=progress,
        ),
        weights=EngineWeights(stages, progress),
        engine_counts=ServingCounts(),
        book=book,
        evaluator=Evaluator(
            config.eval,
            seed=config.run.seed,
            book=book,
            rollouts=rollouts,
            learner=stages.learner,
            watch=failures,
            pending=pending,
            progress=progress,
        ),
        checkpoints=checkpoints,
        health=health,
        decisions=StepDecisions(
            position=position,
            health=health,
            store=store,
            clock=clock,
            book=book,
            checkpoints=checkpoints,
            steps=config.train.steps,
            evaluate_every=config.eval.every_steps,
        ),
        log=StepLog(parts.metrics, logged=history.logged, health=health, progress=progress),
        stop=stop,
        progress=progress,
        refresh=parts.refresh,
    )
