"""Rolling out without training: `agentrl eval` and `agentrl rollout`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Protocol, TypeVar

from agentrl.chat import ChatFormat
from agentrl.config import RunConfig
from agentrl.config.plan import Plan, plan_run
from agentrl.config.schema import RolloutSection
from agentrl.data import TrajectoryStore
from agentrl.data.run.paths import RunPaths
from agentrl.disk.logs import log_to
from agentrl.errors import RunError
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.runtime.checks.fleet import require_engines
from agentrl.runtime.checks.task_faults import log_notes, scored_tasks, training_tasks
from agentrl.runtime.children.packed_group import PackedGroup
from agentrl.runtime.drivers.concurrency import RolloutLimit
from agentrl.runtime.drivers.groups import (
    GroupRunner,
    eval_seeds,
    rollouts_of,
    run_groups,
    sampling_of,
    stable_seed,
)
from agentrl.runtime.health.failure_watch import infrastructure_failure
from agentrl.runtime.launch import check_parts, in_flight
from agentrl.runtime.open_policy import open_policy
from agentrl.runtime.progress import Progress, RunPlan
from agentrl.runtime.sampling.api import ApiUse, open_api_policy, write_evaluation
from agentrl.runtime.sampling.brought_tasks import BroughtTasks, TakingTasks
from agentrl.runtime.scores import EvalSummary
from agentrl.runtime.scoring.evaluate import summarise
from agentrl.runtime.stages import GroupReport, HeldGroup
from agentrl.served import ServedSettings
from agentrl.types import SamplingParams, Task, TrajectoryGroup

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SampledPolicy(Protocol):
    """The part of a policy that an evaluation needs, wherever it samples."""

    @property
    def model(self) -> str:
        """Describes the model in words."""
        ...

    @property
    def rollouts(self) -> GroupRunner[HeldGroup | PackedGroup]:
        """Makes groups with it."""
        ...

    @property
    def chat(self) -> ChatFormat:
        """Format that turns messages into ids."""
        ...

    @property
    def sandbox_text(self) -> str:
        """Backend of the sandboxes and how strong it is."""
        ...


P = TypeVar("P", bound=SampledPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """Counts of the rollouts that `collect` made."""

    rollouts: int
    """Rollouts started."""
    trusted: int
    """Rollouts whose reward counts."""
    mean_reward: float | None
    """Over the trusted ones; None if there are none."""
    terminations: Mapping[str, int]
    """Number of rollouts by termination."""
    out: Path
    """A directory that `agentrl traj show` reads."""


async def evaluate(
    config: RunConfig, *, base: Path, model_path: str | None, out: Path, progress: Progress
) -> list[EvalSummary]:
    """Score a policy on every `eval.datasets` entry, or on `dataset` where there is none.

    Args:
        config: environment, limits, `eval` section; nothing is trained.
        base: where relative paths of the config start.
        model_path: overrides `model.path`; a run directory stands for its latest checkpoint.
        out: trajectories go to `out`/trajectories.
        progress: notified of what happens.

    Raises:
        AgentrlError: anything that does not fit, or not one rollout could be scored.
        Interrupted: SIGINT or SIGTERM.
    """

    plan, stop = plan_run(config, base), StopSwitch()
    with stop.on_signals():
        scores = await score_policy(
            plan, model_path=model_path, out=out, step=0, progress=progress, stop=stop, log=True
        )
    write_evaluation(out, policy=model_path or plan.engines.model.path, scores=scores)
    return scores


async def score_policy(
    plan: Plan,
    *,
    model_path: str | None,
    out: Path,
    step: int,
    progress: Progress,
    stop: StopSwitch,
    log: bool = False,
) -> list[EvalSummary]:
    """As `evaluate`, of the policy after `step` training steps, until `stop` is asked to stop.

    With `log` it has a log of its own in `out`.
    """
    check_parts(plan, model_path=model_path)
    await stop.guard(require_engines(plan.engines, model_path=model_path))
    opened = open_policy(
        plan,
        model_path=model_path,
        logs=out / "logs",
        note=progress.note,
        images=out / "images",
    )
    return await _score(
        plan,
        logged(opened, out) if log else opened,
        lambda policy: None,
        at_once=in_flight(plan.engines, plan.schedule.schedule),
        out=out,
        step=step,
        progress=progress,
        stop=stop,
        model_path=model_path,
    )


async def evaluate_api(
    config: RunConfig,
    settings: ServedSettings,
    *,
    base: Path,
    out: Path,
    progress: Progress,
    native_tools: bool = True,
) -> tuple[list[EvalSummary], ApiUse]:
    """As `evaluate`, of a model behind an API; no model is loaded and no engine started.

    Args:
        config: as there; `serving` has no effect, and of `model.path` only the tokenizer is used.
        settings: the API, and the bounds within which it is asked.
        base: as there.
        out: as there; the rows have an empty mask.
        progress: notified of what happens.
        native_tools: whether tools are part of the requests, or described in the first message.

    Returns:
        The scores, and what was used of the API.
    """
    stop = StopSwitch()
    used: list[ApiUse] = []
    with stop.on_signals():
        plan = plan_run(config, base)
        check_parts(plan)
        opened = open_api_policy(plan.rollouts, settings, native_tools=native_tools)
        scores = await _score(
            plan,
            logged(opened, out),
            lambda policy: used.append(policy.use),
            at_once=2 * settings.max_in_flight,
            out=out,
            step=0,
            progress=progress,
            stop=stop,
        )
    write_evaluation(out, policy=settings.model, scores=scores, use=used[0])
    return scores, used[0]


async def _score(
    plan: Plan,
    opened: AbstractAsyncContextManager[P],
    on_end: Callable[[P], None],
    *,
    at_once: int,
    out: Path,
    step: int,
    progress: Progress,
    stop: StopSwitch,
    model_path: str | None = None,
) -> list[EvalSummary]:
    """Score a policy that is opened for it; `on_end` is called before it is closed."""
    sets, schedule = scored_tasks(plan, model_path=model_path), plan.schedule
    chosen = sets.evals or {"dataset": sets.train}
    store = TrajectoryStore(out / "trajectories")
    n = schedule.eval.n_samples
    summaries = []
    async with opened as policy:
        log_notes(sets)
        progress.started(plan_of(policy, out, sum(map(len, chosen.values()))))
        for name, tasks in chosen.items():
            groups = await stop.guard(
                _roll_out(
                    policy,
                    tasks,
                    name=f"eval-{name}",
                    phase=f"eval {name}",
                    n=n,
                    sampling=policy_sampling(schedule.rollout, policy, schedule.eval.temperature),
                    seed=eval_seeds(schedule.run.seed, name),
                    limit=RolloutLimit(at_once),
                    progress=progress,
                )
            )
            reports = [handle.report for handle in groups]
            _require_some(name, reports)
            store.write(step, f"eval/{name}", [handle.group for handle in groups], None)
            summaries.append(summarise(name, step, reports, n_samples=n))
            progress.evaluated(summaries[-1])
        on_end(policy)
    return summaries


async def collect(
    config: RunConfig,
    *,
    base: Path,
    model_path: str | None,
    tasks: int | None,
    out: Path,
    progress: Progress,
    each_stored: bool = False,
    taking_tasks: TakingTasks | None = None,
) -> Collection:
    """Roll the first `tasks` training tasks out, `rollout.n_samples_per_prompt` times each.

    Args and errors as `evaluate`; the sampling is that of training. Without a number of tasks, all
    are rolled out. With `each_stored` a group is on disk, as a step of its own, as soon as it has
    ended: what a kill loses are the rollouts under way. With `taking_tasks`, tasks that agents
    bring are rolled out once each beside them; with 0 tasks, they alone, until the run is stopped.
    """

    stop = StopSwitch()
    with stop.on_signals():
        plan = plan_run(config, base)
        schedule = plan.schedule
        check_parts(plan, model_path=model_path)
        await stop.guard(require_engines(plan.engines, model_path=model_path))
        sets = training_tasks(plan, model_path=model_path)
        chosen = sets.train[:tasks]
        n = schedule.rollout.n_samples_per_prompt
        store = TrajectoryStore(out / "trajectories")
        ended = itertools.count(1)

        def keep(handle: HeldGroup | PackedGroup) -> None:
            if each_stored:
                store.write(next(ended), "train", [handle.group], None)

        opened = open_policy(
            plan,
            model_path=model_path,
            logs=out / "logs",
            note=progress.note,
            images=out / "images",
        )
        async with logged(opened, out) as policy:
            log_notes(sets)
            progress.started(plan_of(policy, out, len(chosen)))
            sampling = policy_sampling(schedule.rollout, policy, schedule.rollout.temperature)
            seed, most = schedule.run.seed, in_flight(plan.engines, schedule.schedule)
            brought = BroughtTasks(policy.rollouts, sampling=sampling, seed=seed, on_group=keep)
            async with brought.taken(taking_tasks, most=most):
                groups = await stop.guard(
                    _roll_out(
                        policy,
                        chosen,
                        name="rollout",
                        phase="rollout",
                        n=n,
                        sampling=sampling,
                        seed=lambda task: stable_seed(seed, "rollout", task.id),
                        limit=RolloutLimit(most),
                        progress=progress,
                        on_group=keep,
                    )
                )
                unending = taking_tasks is not None and not chosen
                await stop.guard(asyncio.Event().wait() if unending else brought.rest())
        made = [handle.group for handle in (*groups, *brought.groups)]
        if not each_stored:
            store.write(0, "train", made, None)
    return collection_of(made, out)


@contextlib.asynccontextmanager
async def logged(opened: AbstractAsyncContextManager[T], out: Path) -> AsyncIterator[T]:
    """Open what is sampled from, and log to `out`/run.log while it is; errors with tracebacks."""
    with log_to(RunPaths(out).log_file):
        try:
            async with opened as policy:
                yield policy
        except Exception as error:
            if not isinstance(error, Interrupted):
                logger.info("it ends with an error", exc_info=True)
            raise


def collection_of(groups: Sequence[TrajectoryGroup], out: Path) -> Collection:
    """Count the rollouts of groups that are stored in a directory."""
    last = rollouts_of(groups)
    rewards = [row.reward for row in last if row.rule.reward_trusted and row.reward is not None]
    terminations: dict[str, int] = {}
    for row in last:
        terminations[str(row.termination)] = terminations.get(str(row.termination), 0) + 1
    return Collection(
        rollouts=len(last),
        trusted=len(rewards),
        mean_reward=fmean(rewards) if rewards else None,
        terminations=terminations,
        out=out,
    )


async def _roll_out(
    policy: SampledPolicy,
    tasks: Sequence[Task],
    *,
    name: str,
    phase: str,
    n: int,
    sampling: SamplingParams,
    seed: Callable[[Task], int],
    limit: RolloutLimit,
    progress: Progress,
    on_group: Callable[[HeldGroup | PackedGroup], None] = lambda handle: None,
) -> list[HeldGroup | PackedGroup]:
    progress.phase(phase, len(tasks) * n)

    def note(handle: HeldGroup | PackedGroup) -> None:
        progress.advance(n, handle.report.tokens)
        on_group(handle)

    return await run_groups(
        policy.rollouts,
        tasks,
        name=name,
        n=n,
        sampling=sampling,
        seed=seed,
        limit=limit,
        on_group=note,
    )


def policy_sampling(
    section: RolloutSection, policy: SampledPolicy, temperature: float
) -> SamplingParams:
    """Sampling of a turn with the limits of training and the stop tokens of a policy."""
    return sampling_of(section, temperature, policy.chat.stop_token_ids)


def plan_of(policy: SampledPolicy, out: Path, tasks: int) -> RunPlan:
    """The plan of a run that trains nothing, for the live view."""
    return RunPlan(
        run_dir=out,
        steps=0,
        done=0,
        max_minutes=None,
        model=policy.model,
        sandbox=policy.sandbox_text,
        tasks=tasks,
        rollouts_per_step=0,
    )


def _require_some(name: str, groups: Sequence[GroupReport]) -> None:
    failure = infrastructure_failure(groups)
    if failure is not None:
        raise RunError(f"no rollout of {name!r} could be scored: {failure}")
