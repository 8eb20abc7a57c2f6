"""Makes the driver of a `schedule` with its parts, and refuses contradicting schedules."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentrl.config.fleet import ScheduleSection
from agentrl.config.plan import SchedulePlan
from agentrl.errors import ConfigError
from agentrl.machine.processes.stop import StopSwitch
from agentrl.runtime.drivers.asynchronous import AsynchronousRun
from agentrl.runtime.drivers.driver import StepLoop
from agentrl.runtime.drivers.make_parts import make_driver_parts
from agentrl.runtime.drivers.mini_batches import MiniBatchPlan, why_whole_steps
from agentrl.runtime.drivers.synchronous import SynchronousRun
from agentrl.runtime.drivers.tail_batching import TailBatchingRun
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import Parts, RunHistory
from agentrl.runtime.scoring.evaluation_beside import why_training_stops

if TYPE_CHECKING:
    from agentrl.disk.run_directory import RunDir


def make_run(
    plan: SchedulePlan,
    run_dir: RunDir,
    parts: Parts,
    *,
    history: RunHistory,
    progress: Progress,
    stop: StopSwitch,
    now: Callable[[], float] = time.monotonic,
) -> StepLoop:
    """Make the driver of a schedule.

    Args:
        plan: of the schedule.
        run_dir: its locked directory.
        parts: the opened stages and the disk.
        history: what earlier processes left.
        progress: notified of what happens.
        stop: ends the run.
        now: a clock that never goes back, in seconds.

    Raises:
        ConfigError: see `check_schedule`.
    """
    rollout, reward, schedule = plan.rollout, plan.reward, plan.schedule
    check_schedule(schedule, shares_weights=parts.stages.engines.shares_weights)
    made = make_driver_parts(
        plan, run_dir, parts, history=history, progress=progress, stop=stop, now=now
    )
    kind = driver_kind(schedule)
    early = early_plan(plan, shares_weights=parts.stages.engines.shares_weights)
    if kind is TailBatchingRun:
        return TailBatchingRun(made, rollout=rollout, reward=reward, schedule=schedule)
    if kind is AsynchronousRun:
        why = why_training_stops(
            plan.checkpoint,
            shares_weights=parts.stages.engines.shares_weights,
            rules_of_scores=made.health.rules_of_scores,
        )
        return AsynchronousRun(
            made,
            rollout=rollout,
            reward=reward,
            schedule=schedule,
            steps=plan.train.steps,
            beside=not why,
        )
    return SynchronousRun(made, rollout=rollout, reward=reward, plan=early)


def early_plan(plan: SchedulePlan, *, shares_weights: bool) -> MiniBatchPlan | None:
    """The minibatches that are trained as soon as they are complete; None where steps wait.

    Args:
        plan: of the schedule.
        shares_weights: engines sample from the learner's own tensors.
    """
    schedule, train = plan.schedule, plan.train
    why = why_whole_steps(
        train,
        plan.algorithm,
        plan.reward,
        synchronous=is_synchronous(schedule),
        shares_weights=shares_weights,
    )
    if why:
        return None
    return MiniBatchPlan(plan.rollout, minibatches=train.minibatches, seed=plan.run.seed)


def driver_kind(schedule: ScheduleSection) -> type[StepLoop]:
    """The driver class that a schedule asks for."""
    if schedule.oversample > 1:
        return TailBatchingRun
    return AsynchronousRun if runs_ahead(schedule) else SynchronousRun


def is_synchronous(schedule: ScheduleSection) -> bool:
    """No rollout is under way between the steps of a schedule."""
    return driver_kind(schedule) is SynchronousRun


def runs_ahead(schedule: ScheduleSection) -> bool:
    """Rollouts may be older than the weights they train."""
    return schedule.trigger_parameter_sync_step > 1 or schedule.staleness_threshold > 0


def check_schedule(schedule: ScheduleSection, *, shares_weights: bool) -> None:
    """Refuse a schedule that contradicts itself or has no effect.

    Args:
        schedule: of the run.
        shares_weights: engines sample from the learner's own tensors, as the embedded one does.

    Raises:
        ConfigError: the first thing found, with what to write instead.
    """
    _check_partial(schedule)
    _check_lag(schedule)
    _check_oversample(schedule)
    if shares_weights:
        _check_shared(schedule)


def _check_partial(schedule: ScheduleSection) -> None:
    if schedule.partial_rollout and schedule.staleness_threshold == 0:
        raise ConfigError(
            "schedule.partial_rollout is set, but with staleness_threshold 0 no rollout is in "
            "flight when weights are synced; set staleness_threshold above 0"
        )


def _check_lag(schedule: ScheduleSection) -> None:
    limit = schedule.lag_limit
    if limit is None:
        return
    if not runs_ahead(schedule):
        raise ConfigError(
            f"schedule.max_version_lag is {limit}, but this schedule is "
            "on-policy and no token is ever older than the weights it trains; remove it, or set "
            "staleness_threshold"
        )
    least = schedule.trigger_parameter_sync_step - 1
    if limit < least:
        raise ConfigError(
            f"schedule.max_version_lag is {limit}, but between two syncs tokens "
            f"are up to {least} versions old even when no rollout runs ahead: all of them would "
            f"be too old; set it to at least {least}"
        )


def _check_oversample(schedule: ScheduleSection) -> None:
    if schedule.oversample > 1 and (runs_ahead(schedule) or schedule.partial_rollout):
        raise ConfigError(
            f"schedule.oversample is {schedule.oversample}, which is for on-policy runs: "
            "remove it, or trigger_parameter_sync_step, staleness_threshold and partial_rollout"
        )


def _check_shared(schedule: ScheduleSection) -> None:
    if schedule.trigger_parameter_sync_step > 1:
        raise ConfigError(
            "schedule.trigger_parameter_sync_step is "
            f"{schedule.trigger_parameter_sync_step}, but the embedded engine samples from the "
            "trainer's own weights, which are new after every step; set it to 1, or use "
            "serving.engine: vllm"
        )
    if runs_ahead(schedule) and not schedule.partial_rollout:
        raise ConfigError(
            "with the embedded engine, training changes the weights under the rollouts in flight; "
            "set schedule.partial_rollout: true, which allows that, or use serving.engine: vllm"
        )
