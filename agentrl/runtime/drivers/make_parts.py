"""Makes the parts of a driver, standing where earlier processes of the run have stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.config.plan import SchedulePlan
from agentrl.machine.processes.stop import StopSwitch
from agentrl.metrics.run_clock import RunClock
from agentrl.runtime.drivers.checkpoint_keeper import CheckpointKeeper
from agentrl.runtime.drivers.concurrency import Concurrency
from agentrl.runtime.drivers.decisions import StepDecisions
from agentrl.runtime.drivers.driver import DriverParts
from agentrl.runtime.drivers.evaluator import Evaluator
from agentrl.runtime.drivers.filters.pending_groups import PendingGroups
from agentrl.runtime.drivers.groups import stable_seed
from agentrl.runtime.drivers.position import RunPosition
from agentrl.runtime.drivers.rollout_runner import RolloutRunner
from agentrl.runtime.drivers.step_learner import StepLearner
from agentrl.runtime.drivers.step_log import StepLog
from agentrl.runtime.drivers.weight_sync import EngineWeights
from agentrl.runtime.health.failure_watch import FailureWatch
from agentrl.runtime.health.outage_retries import OutageRetries
from agentrl.runtime.health.run_health import RunHealth
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import Parts, RunHistory
from agentrl.runtime.scoring.score_book import ScoreBook, last_value
from agentrl.serving.engine_counts import ServingCounts

if TYPE_CHECKING:
    from agentrl.disk.run_directory import RunDir


def make_driver_parts(
    plan: SchedulePlan,
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
        plan: of the schedule.
        run_dir: its locked directory.
        parts: the opened stages and the disk.
        history: what earlier processes left.
        progress: notified of what happens.
        stop: ends the run.
        now: a clock that never goes back, in seconds.
    """
    stages = parts.stages
    stages.engines.guard = stop.guard
    rolling = OutageRetries(stages.rollouts, stages.engines)
    known = _standing(plan, run_dir, parts, rolling, history, progress, stop, now)
    concurrency = Concurrency(parts.in_flight, slots_per_engine=parts.slots_per_engine)
    rollouts = RolloutRunner(
        rolling,
        plan.rollout,
        stop_token_ids=stages.stop_token_ids,
        limit=concurrency.limit,
        seed=known.seed,
        stop=stop,
        progress=progress,
    )
    log = StepLog(parts.metrics, logged=history.logged, health=known.health, progress=progress)
    checkpoints = _checkpoints(plan, run_dir, parts, known, progress, log)
    return DriverParts(
        run_dir=run_dir,
        stages=stages,
        store=parts.store,
        seed=known.seed,
        concurrency=concurrency,
        position=known.position,
        clock=known.clock,
        rollouts=rollouts,
        pending=known.pending,
        failures=known.failures,
        learner=_learner(parts, known, progress, stop),
        weights=EngineWeights(stages, progress),
        engine_counts=ServingCounts(),
        book=known.book,
        evaluator=_evaluator(plan, parts, known, rollouts, progress),
        checkpoints=checkpoints,
        health=known.health,
        decisions=_decisions(plan, parts, known, checkpoints),
        log=log,
        stop=stop,
        progress=progress,
        refresh=parts.refresh,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """The parts that know how far a run has come; the others are made with them."""

    seed: int
    """Seed of training rollouts."""
    position: RunPosition
    """Steps done and the cursor of the tasks."""
    clock: RunClock
    """Wall time of the run over all processes."""
    book: ScoreBook
    """Scores known so far."""
    pending: PendingGroups
    """Sampled groups that no step has trained."""
    failures: FailureWatch
    """Ends a run in which nothing works."""
    health: RunHealth
    """Rules, detectors and pauses."""


def _standing(
    plan: SchedulePlan,
    run_dir: RunDir,
    parts: Parts,
    rolling: OutageRetries,
    history: RunHistory,
    progress: Progress,
    stop: StopSwitch,
    now: Callable[[], float],
) -> _Standing:
    seed = plan.run.seed
    if history.rollbacks.count:
        # The same rollouts from the same weights would end where the last ones did.
        seed = stable_seed(seed, "rollback", history.rollbacks.count)
    clock = RunClock(
        plan.train.max_minutes,
        elapsed_s=history.elapsed_s,
        step_s=last_value(history.logged, "timing_s/step"),
        checkpoint_s=last_value(history.logged, "timing_s/checkpoint"),
        now=now,
    )
    return _Standing(
        seed=seed,
        position=RunPosition(parts.cursor, parts.leaps, done=history.done),
        clock=clock,
        book=ScoreBook(
            parts.eval_tasks,
            parts.store,
            n_samples=plan.eval.n_samples,
            logged=history.logged,
            now=now,
        ),
        pending=PendingGroups(rolling),
        failures=FailureWatch(worked=history.done > 0, note=progress.note),
        health=RunHealth(
            plan.health,
            run_dir,
            history,
            settings=plan.settings,
            progress=progress,
            stop=stop,
        ),
    )


def _checkpoints(
    plan: SchedulePlan,
    run_dir: RunDir,
    parts: Parts,
    known: _Standing,
    progress: Progress,
    log: StepLog,
) -> CheckpointKeeper:
    return CheckpointKeeper(
        run_dir,
        plan.checkpoint,
        learner=parts.stages.learner,
        position=known.position,
        book=known.book,
        protected=known.health.protected,
        clock=known.clock,
        progress=progress,
        log=log.add,
        refresh=parts.refresh,
    )


def _learner(parts: Parts, known: _Standing, progress: Progress, stop: StopSwitch) -> StepLearner:
    return StepLearner(
        parts.stages,
        pending=known.pending,
        position=known.position,
        clock=known.clock,
        stop=stop,
        progress=progress,
    )


def _evaluator(
    plan: SchedulePlan,
    parts: Parts,
    known: _Standing,
    rollouts: RolloutRunner,
    progress: Progress,
) -> Evaluator:
    return Evaluator(
        plan.eval,
        seed=plan.run.seed,
        book=known.book,
        rollouts=rollouts,
        learner=parts.stages.learner,
        watch=known.failures,
        pending=known.pending,
        progress=progress,
    )


def _decisions(
    plan: SchedulePlan, parts: Parts, known: _Standing, checkpoints: CheckpointKeeper
) -> StepDecisions:
    return StepDecisions(
        position=known.position,
        health=known.health,
        store=parts.store,
        clock=known.clock,
        book=known.book,
        checkpoints=checkpoints,
        steps=plan.train.steps,
        evaluate_every=plan.eval.every_steps,
    )
