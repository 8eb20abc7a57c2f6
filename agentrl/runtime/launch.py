"""Starting, resuming and ending a run."""

from __future__ import annotations

import contextlib
import gc
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from agentrl.chat import build_parser
from agentrl.config import RunConfig
from agentrl.config.fleet import ScheduleSection, ServingSection
from agentrl.config.load import RUN_FILE
from agentrl.config.plan import EnginePlan, Plan, plan_run
from agentrl.data import TrajectoryStore
from agentrl.data.run.task_labels import write_task_labels
from agentrl.disk.checkpoint import resolve_model_path, sweep
from agentrl.disk.logs import log_to
from agentrl.disk.metric_sinks import check_sinks, open_metrics
from agentrl.disk.rollback import RollBack, begin_rollback, finish_rollbacks
from agentrl.disk.run_directory import RunDir
from agentrl.disk.run_name import holds_a_run, run_path
from agentrl.errors import AgentrlError, RunError
from agentrl.fit.refresh.checks import check_refresh
from agentrl.fit.refresh.reward_refresh import make_refresh
from agentrl.fit.reward_models.open import check_reward_models
from agentrl.machine.processes.heap import frozen_heap
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.metrics.sinks import MetricsLog
from agentrl.models.source import check_model_path
from agentrl.reward import load_reward_functions
from agentrl.runtime.assembly.hints import check_hints, hint_section
from agentrl.runtime.assembly.parts import TaskSets, load_task_sets, make_env_factory
from agentrl.runtime.assembly.resume_point import resume_point
from agentrl.runtime.assembly.task_choice import dataset_sections, read_chosen, write_chosen
from agentrl.runtime.assembly.teacher import ask_server, check_teacher
from agentrl.runtime.assembly.tools import make_tools
from agentrl.runtime.assembly.trainer import check_learner
from agentrl.runtime.checks.algorithm import check_estimator, doubts, notes
from agentrl.runtime.checks.colocation import with_turns
from agentrl.runtime.checks.fleet import require_fleet
from agentrl.runtime.checks.task_faults import check_labels, limit_prompts, log_notes
from agentrl.runtime.drivers.choose import (
    check_schedule,
    is_synchronous,
    make_run,
    runs_ahead,
)
from agentrl.runtime.health.rules import check_health
from agentrl.runtime.live_state import LiveState
from agentrl.runtime.open_stages import open_stages
from agentrl.runtime.progress import Progress, RunPlan
from agentrl.runtime.rank_restarts import RankLost, RankRestarts
from agentrl.runtime.records import Parts, RunResult
from agentrl.sync import find_transfer

logger = logging.getLogger(__name__)


async def train(
    config: RunConfig, *, base: Path, run_dir: RunDir | None = None, progress: Progress
) -> RunResult:
    """Run a config from its first step, or go on with the run in `run_dir`.

    Args:
        config: what to do; for a resumed run already checked with `RunDir.adopt`.
        base: where relative paths of the config start.
        run_dir: the locked directory of a run to resume; None begins a new run.
        progress: notified of what happens.

    Raises:
        AgentrlError: anything wrong with config, data, model, sandbox or run directory. Of a run
            directory made by this call that holds nothing worth keeping, only logs of servers stay.
        Interrupted: SIGINT or SIGTERM; everything is closed and the last finished step is saved.
    """
    began = time.monotonic()
    from agentrl.train.losses import find_loss

    stop = StopSwitch(grace_s=config.run.grace_s)
    with stop.on_signals():
        config = RUN_FILE.whole(config, base)
        config = run_dir.resolve_models(config) if run_dir else config
        plan = plan_run(config, base)
        check_parts(plan)
        check_learner(plan.trainer)
        find_loss(plan.trainer.algorithm.policy_loss, base=base)
        datasets = dataset_sections(plan.tasks)
        chosen = read_chosen(run_dir.chosen_file, datasets, base=base) if run_dir else None
        tasks = load_task_sets(plan.tasks, chosen=chosen)
        check_labels(tasks, plan.rollouts)
        tasks = limit_prompts(tasks, plan.rollouts, plan.tasks)
        if (hint := hint_section(plan.trainer)) is not None:
            check_hints(hint, tasks.train)
        await require_fleet(with_turns(plan)[0].engines)
        await ask_server(plan.trainer)
        directory = run_dir or RunDir.create(config, base=base)
        try:
            config = directory.resolve_models(config)
            plan = plan_run(config, base)
            write_chosen(directory.chosen_file, datasets, tasks)
            write_task_labels(directory.task_labels_file, tasks.by_kind())
            slots = plan.engines.serving.max_batch_size
            sinks = partial(open_metrics, directory, config)
            live = LiveState(directory.live_file, progress, slots_per_engine=slots)
            with log_to(directory.log_file), live.open():
                try:
                    log_notes(tasks)
                    return await _run_in(directory, plan, sinks, tasks, live, stop, began)
                except Exception as error:
                    if not isinstance(error, Interrupted):
                        # Only for the traceback in run.log; the caller decides what is shown.
                        logger.info("the run ends with an error", exc_info=True)
                    raise
        except AgentrlError:
            directory.discard()
            raise
        finally:
            directory.close()


def check_parts(plan: Plan, *, model_path: str | None = None) -> None:
    """Resolve what the config names before anything is opened or loaded.

    Args:
        plan: the run.
        model_path: policy that takes the place of `model.path`, which then need not be there.

    Raises:
        AgentrlError: the first thing that does not resolve.
    """

    base = plan.base
    rollouts, schedule = plan.rollouts, plan.schedule
    shared = plan.engines.serving.engine == "embedded"
    check_schedule(schedule.schedule, shares_weights=shared)
    check_estimator(plan.trainer)
    check_sinks(plan.trainer.log)
    check_health(schedule.health, datasets=plan.tasks.evals)
    key = "--model" if model_path else "model.path"
    check_model_path(resolve_model_path(model_path or rollouts.model.path), key=key)
    build_parser(rollouts.chat.tool_parser, base=base)
    find_transfer(plan.engines.sync.backend, base=base)
    make_tools(rollouts.env, base=base)
    make_env_factory(rollouts.env, base=base, rollout=rollouts.rollout)
    load_reward_functions(rollouts.reward, base=base, timeout_s=rollouts.rollout.env_timeout_s)
    check_reward_models(plan.rewards)
    check_refresh(schedule, synchronous=is_synchronous(schedule.schedule))
    check_teacher(plan.trainer)


def open_run(config: RunConfig, *, base: Path) -> RunDir | None:
    """The run that `config` names, locked, for `--resume`; None if there is none to go on with.

    Raises:
        RunError: it is in use, or the config does not fit it.
    """
    config = RUN_FILE.whole(config, base)
    path = run_path(config.run)
    if not holds_a_run(path):
        logger.info("nothing to resume in %s: starting from the first step", path)
        return None
    run_dir, _, _ = RunDir.resume(path)
    try:
        run_dir.adopt(config, base=base)
    except AgentrlError:
        run_dir.close()
        raise
    return run_dir


async def _run_in(
    directory: RunDir,
    plan: Plan,
    sinks: Callable[[], MetricsLog],
    tasks: TaskSets,
    progress: LiveState,
    stop: StopSwitch,
    began: float,
) -> RunResult:
    """Run to the end; after a rollback or the loss of a rank it goes on as a resume does."""
    restarts = RankRestarts(plan.engines.runtime, TrajectoryStore(directory.trajectories))
    while True:
        with _rolling_back(directory.path):
            finish_rollbacks(directory.path)
        try:
            return await _run_from_disk(directory, plan, sinks, tasks, progress, stop, began)
        except RollBack as asked:
            with _rolling_back(directory.path):
                begin_rollback(directory.path, asked.plan)
        except RankLost as lost:
            progress.note(restarts.after(lost))
        gc.collect()  # models are large, and those of the stages that ended may be in a cycle
        began = time.monotonic()


@contextlib.contextmanager
def _rolling_back(run: Path) -> Iterator[None]:
    """What the disk does to a rollback, as an error that explains how it goes on."""
    try:
        yield
    except OSError as error:
        free = shutil.disk_usage(run).free / 2**30
        raise RunError(
            f"the rollback of {run} could not be written ({error}); {free:.1f} GiB are free there; "
            "nothing is lost: make room, or make it writable, and --resume carries it out"
        ) from error


async def _run_from_disk(
    directory: RunDir,
    plan: Plan,
    sinks: Callable[[], MetricsLog],
    tasks: TaskSets,
    progress: LiveState,
    stop: StopSwitch,
    began: float,
) -> RunResult:
    from agentrl.train.optim.resumed import resume_notes

    sweep(directory.checkpoints)
    steps = plan.schedule.train.steps
    point = resume_point(directory, tasks, seed=plan.schedule.run.seed, steps=steps)
    if point.weights_only is not None:
        progress.note(
            f"{point.weights_only} holds weights alone (checkpoint.save: model); the stored steps "
            f"after step {point.history.done} are trained again, with the same result"
        )
    for path in point.damaged:
        progress.note(
            f"checkpoint {path} is damaged (run.log says how) and is passed over: going on from "
            f"step {point.history.done}; stored steps after it are trained again, not rolled out"
        )
    store = TrajectoryStore(directory.trajectories)
    stages = open_stages(directory, plan, point, store, progress)
    async with stop.opening(stages) as opened:
        metrics = sinks()
        try:
            if point.history.logged:
                # Also when an earlier process died between a rollback and this line.
                metrics.truncate_after(max(point.history.logged))
            progress.started(
                RunPlan(
                    run_dir=directory.path,
                    steps=plan.schedule.train.steps,
                    done=point.history.done,
                    max_minutes=plan.schedule.train.max_minutes,
                    model=opened.model,
                    sandbox=opened.sandbox,
                    tasks=len(tasks.train),
                    rollouts_per_step=plan.schedule.rollout.prompts_per_step
                    * plan.schedule.rollout.n_samples_per_prompt,
                )
            )
            done = point.history.done
            for note in (
                *resume_notes(directory.changed, plan.schedule.train, done=done),
                *notes(plan.trainer, plan.schedule.reward),
            ):
                logger.info("%s", note)
                progress.note(note)
            for doubt in doubts(plan.trainer, plan.schedule):
                progress.note(doubt)
            refresh = make_refresh(
                plan.schedule,
                directory.path,
                tasks.train,
                store,
                opened.stages.reward_models,
                progress,
                stop,
            )
            if refresh is not None:
                saved = point.checkpoint.state.rm_version if point.checkpoint else 0
                await stop.guard(refresh.restore(saved))
            parts = Parts(
                stages=opened.stages,
                cursor=point.cursor,
                leaps=dict(point.leaps),
                eval_tasks=tasks.evals,
                store=store,
                metrics=metrics,
                in_flight=in_flight(plan.engines, plan.schedule.schedule),
                slots_per_engine=slots_per_engine(plan.engines.serving),
                refresh=refresh,
            )
            # Data and models that are loaded take time of the run, too.
            opened_s = point.history.elapsed_s + time.monotonic() - began
            history = replace(point.history, elapsed_s=opened_s)
            run = make_run(
                plan.schedule, directory, parts, history=history, progress=progress, stop=stop
            )
            with frozen_heap():
                async with progress.watching(opened.stages.in_flight):
                    result = await run.run()
            progress.finished(result)
            return result
        finally:
            metrics.close()


def slots_per_engine(serving: ServingSection) -> int | None:
    """Rollouts that one engine decodes at once; None for the embedded engine, which keeps its rows
    by itself and decodes between the steps of the trainer."""
    return None if serving.engine == "embedded" else serving.max_batch_size


def in_flight(plan: EnginePlan, schedule: ScheduleSection) -> int:
    """Most rollouts at once: twice what all engines decode, so that none waits for tools.

    A schedule that runs ahead keeps a third one ready for each decoding slot, since a group holds
    its slots until its last rollout has ended.
    """
    section = plan.serving
    if section.engine == "embedded":  # each trainer rank has one
        engines = plan.runtime.trainer_ranks if plan.runtime.kind == "ray" else 1
    else:
        engines = len(section.urls) if section.engine == "external" else section.replicas
    slots = section.max_batch_size * engines
    return slots * (3 if runs_ahead(schedule) else 2)
