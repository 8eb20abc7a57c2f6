"""The difficulty of every task, measured before training: `agentrl tasks profile`.

A group whose rollouts all earn the same teaches nothing. So tasks that the policy always or never
solves are better left out (`difficulty.keep` of a dataset) or drawn less (`selection: variance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from agentrl.cli.console.owner import owned
from agentrl.config import RunConfig
from agentrl.config.plan import Plan, plan_run
from agentrl.config.schema import RolloutSection
from agentrl.data import load_tasks
from agentrl.data.tasks.pass_rates import (
    Measured,
    PassRate,
    append_measured,
    end_torn_line,
    read_measured,
    task_digest,
    variance_weight,
)
from agentrl.disk.model_source import named_source
from agentrl.errors import ConfigError, DataError
from agentrl.machine.processes.stop import StopSwitch
from agentrl.runtime.assembly.parts import TaskSets
from agentrl.runtime.checks.fleet import require_engines
from agentrl.runtime.checks.task_faults import limit_prompts
from agentrl.runtime.children.packed_group import PackedGroup
from agentrl.runtime.drivers.concurrency import RolloutLimit
from agentrl.runtime.drivers.groups import run_groups, stable_seed
from agentrl.runtime.launch import check_parts, in_flight
from agentrl.runtime.open_policy import open_policy
from agentrl.runtime.progress import Progress
from agentrl.runtime.sampling.sample import plan_of, policy_sampling
from agentrl.runtime.stages import HeldGroup
from agentrl.types import Task

BAND = (0.05, 0.9)
"""Pass rates of tasks that are worth training on, as a first choice of `difficulty.keep`."""
_NAME = "profile"
_LIMITS = (
    "top_p", "max_assistant_turns", "max_user_turns", "max_turn_tokens", "max_response_tokens",
    "max_context_tokens", "max_parallel_calls", "max_tool_tokens",
)  # fmt: skip
"""Keys of `rollout` that decide what a task's score can be, beside the temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Measured pass rates of a dataset."""

    file: Path
    """File with one line a task."""
    tasks: int
    """Tasks of the dataset."""
    new: int
    """Tasks measured by this call."""
    measured: Sequence[Measured]
    """Every task that has a pass rate."""
    group: int
    """Rollouts of a task in training."""

    @property
    def mean(self) -> float:
        """Mean pass rate; only where something was measured."""
        return fmean(self._rates)

    def share(self, low: float, high: float) -> float:
        """Share of the measured tasks whose pass rate lies from `low` to `high`."""
        return fmean(low <= rate <= high for rate in self._rates)

    def flat(self, low: float = 0.0, high: float = 1.0) -> float | None:
        """Share of groups expected to be all right or all wrong, of the tasks between the bounds.

        The mean of p^G + (1 - p)^G with the measured p; None without a task.
        """
        rates = [min(max(rate, 0.0), 1.0) for rate in self._rates if low <= rate <= high]
        return fmean(p**self.group + (1 - p) ** self.group for p in rates) if rates else None

    def flat_weighted(self) -> float:
        """The same with tasks drawn as `dataset.selection: variance` does."""
        weights = [
            variance_weight(PassRate(mean=item.mean or 0.0, n=item.n)) for item in self.measured
        ]
        rates = [min(max(rate, 0.0), 1.0) for rate in self._rates]
        shares = [p**self.group + (1 - p) ** self.group for p in rates]
        return sum(w * s for w, s in zip(weights, shares, strict=True)) / sum(weights)

    @property
    def _rates(self) -> list[float]:
        return [item.mean for item in self.measured if item.mean is not None]


async def profile(
    config: RunConfig,
    *,
    base: Path,
    model_path: str | None,
    n: int,
    out: Path,
    progress: Progress,
) -> Profile:
    """Measure how often each task of `dataset` is solved; tasks that `out` holds are not repeated.

    Args:
        config: of the run; `dataset.difficulty` is left aside, everything is measured.
        base: where its relative paths start.
        model_path: overrides `model.path`; a run directory stands for its latest checkpoint.
        n: rollouts per task, sampled as in training.
        out: gets a line for each task, as soon as it is done.
        progress: notified of what happens.

    Raises:
        ConfigError: `out` holds measurements of another model, or sampled otherwise.
        DataError: another process measures into `out`, or it cannot be written.
        AgentrlError: anything else that does not fit.
        Interrupted: SIGINT or SIGTERM; what was measured is in `out`.
    """

    stop = StopSwitch()
    with stop.on_signals():
        plan = plan_run(config, base)
        schedule = plan.schedule
        check_parts(plan, model_path=model_path)
        model = named_source(plan.engines.model, path=model_path)
        everything = plan.tasks.dataset.model_copy(update={"difficulty": None})
        loaded = TaskSets(train=load_tasks(everything, base=plan.base), evals={})
        tasks = limit_prompts(loaded, plan.rollouts, plan.tasks, model_path=model_path).train
        left = _left(tasks, _known(out, model, schedule.rollout), n)
        if left:
            await stop.guard(require_engines(plan.engines, model_path=model_path))
            with owned(out):
                # Another process may have measured some of them meanwhile.
                left = _left(tasks, _known(out, model, schedule.rollout), n)
                if left:
                    await stop.guard(_measure(plan, model_path, model, left, n, out, progress))
        found = read_measured(out)
    mine = [found[task.id] for task in tasks if _is_done(found.get(task.id), task, 1)]
    if not mine:
        raise ConfigError(
            f"no rollout of {len(tasks)} tasks could be scored; a server that died wrote why to "
            "its log, else the environment or its sandbox is at fault: try 'agentrl preflight' "
            "with the same run file"
        )
    return Profile(
        file=out,
        tasks=len(tasks),
        new=len(left),
        measured=mine,
        group=schedule.rollout.n_samples_per_prompt,
    )


async def _measure(
    plan: Plan,
    model_path: str | None,
    model: str,
    tasks: Sequence[Task],
    n: int,
    out: Path,
    progress: Progress,
) -> None:
    schedule = plan.schedule
    temperature = schedule.rollout.temperature
    try:
        end_torn_line(out)
        file = out.open("ab")
    except OSError as error:
        raise DataError(
            f"cannot write {out}: {error.strerror or error}; name another file with --out"
        ) from error
    with file:

        def keep(held: HeldGroup | PackedGroup) -> None:
            task = by_id[held.group.task_id]
            last = [rows[-1] for rows in held.group.rollouts()]
            scores = [row.score for row in last if row.rule.reward_trusted]
            append_measured(
                file,
                Measured.of(
                    task,
                    [score for score in scores if score is not None],
                    failed=len(last) - len(scores),
                    model=model,
                    temperature=temperature,
                    limits=_limits(schedule.rollout),
                ),
            )
            progress.advance(n, held.report.tokens)

        by_id = {task.id: task for task in tasks}
        logs = out.with_name(f"{out.name}.logs")
        async with open_policy(
            plan, model_path=model_path, logs=logs, note=progress.note
        ) as policy:
            progress.started(plan_of(policy, out, len(tasks)))
            progress.phase("profile", len(tasks) * n)
            await run_groups(
                policy.rollouts,
                tasks,
                name=_NAME,
                n=n,
                sampling=policy_sampling(schedule.rollout, policy, temperature),
                seed=lambda task: stable_seed(schedule.run.seed, _NAME, task.id),
                limit=RolloutLimit(in_flight(plan.engines, schedule.schedule)),
                on_group=keep,
            )


def _left(tasks: Sequence[Task], known: dict[str, Measured], n: int) -> list[Task]:
    return [task for task in tasks if not _is_done(known.get(task.id), task, n)]


def _limits(section: RolloutSection) -> str:
    return ", ".join(f"{name} {getattr(section, name):g}" for name in _LIMITS)


def _known(out: Path, model: str, section: RolloutSection) -> dict[str, Measured]:
    temperature, limits = section.temperature, _limits(section)
    found = read_measured(out)
    for item in found.values():
        if (item.model, item.temperature) != (model, temperature):
            raise ConfigError(
                f"{out} holds pass rates of {item.model} at temperature {item.temperature:g}, and "
                f"this is {model} at {temperature:g}; name another file with --out, or delete it"
            )
        if item.limits not in ("", limits):  # empty: written before limits were
            then, now = item.limits.split(", "), limits.split(", ")
            raise ConfigError(
                f"{out} holds pass rates measured with "
                f"{', '.join(value for value in then if value not in now)}, and the run file says "
                f"{', '.join(value for value in now if value not in then)} (rollout.*); name "
                "another file with --out, or delete it"
            )
    return found


def _is_done(item: Measured | None, task: Task, n: int) -> bool:
    """Whether the task as it is now was rolled out so often, and at least once with a score."""
    if item is None or item.digest != task_digest(task):
        return False
    return item.n > 0 and item.n + item.failed >= n
