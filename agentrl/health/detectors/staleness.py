"""Detector over rollouts that are dropped because their weights are too old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from agentrl.errors import some_of
from agentrl.health.detector import detector
from agentrl.health.findings import (
    fine,
    found,
    seen,
    shown,
    trained,
    unknown,
)
from agentrl.health.level import steps_text, sustained
from agentrl.health.levers import sampler
from agentrl.health.measures.counts import shares
from agentrl.health.measures.curves import percent
from agentrl.health.records import Evidence, History, RolloutFacts, Verdict
from agentrl.health.thresholds import OURS, Limits, bound
from agentrl.types import TERMINATION_RULES, Termination
from agentrl.types.finding import Status

_STALE = Termination.STALE.value
_IN_LOSS = frozenset(name.value for name, rule in TERMINATION_RULES.items() if rule.in_loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGroups:
    """Groups of one task that were rolled out."""

    task_id: str
    """`Task.id`."""
    rolled_out: int
    """All of them."""
    trained: int
    """Those of which a rollout may be trained."""
    dropped: int
    """Those of which age left nothing."""


@detector(
    bound("groups", 3, "groups of a task from which on it is judged", OURS),
    bound("trained", 1 / 3, "share of a task's groups that are trained, at most", OURS),
    bound("tasks", 0.1, "share of the judged tasks that starve", OURS),
    bound("dropped", 0.15, "share of rollouts dropped for their age", OURS),
    bound("steps", 5, "steps that count as sustained", OURS),
)
def starvation(history: History, limits: Limits) -> Verdict:
    """Slow tasks are rolled out and never trained, since their rollouts are too old by then."""
    name, metric = "starvation", "rollout/stale_dropped"
    tasks = groups_by_task(history)
    judged = [task for task in tasks if task.rolled_out >= limits["starvation/groups"]]
    starved = sorted(
        (
            task
            for task in judged
            if task.dropped and task.trained <= limits["starvation/trained"] * task.rolled_out
        ),
        key=lambda task: (task.trained / task.rolled_out, -task.rolled_out),
    )
    started, dropped = history.metrics.get("rollout/started"), history.metrics.get(metric)
    lost = shares(started, [dropped]) if started is not None and dropped is not None else None
    if lost is None and not tasks:
        return unknown(name, f"{metric} is not logged, and there are no rollouts")
    often = None
    if lost is not None:
        most = limits["starvation/dropped"]
        curves = History(metrics={metric: lost})
        steps = limits["starvation/steps"]
        often = sustained(curves, metric, lambda v: v >= most, steps, mean=True)
    if not starved and often is None:
        level = fmean(lost.values[-5:]) if lost is not None else 0.0
        return fine(name, f"{percent(level)} of the rollouts are dropped for their age")
    evidence: list[Evidence] = []
    if often is not None:
        evidence.append(
            seen(
                metric,
                often,
                f"up to {percent(often.worst)} of the rollouts are too old, {steps_text(often)}",
            )
        )
    stale = [fact for facts in trained(history).values() for fact in facts if _is_stale(fact)]
    if starved:
        evidence.append(_of_tasks(starved, stale))
    if stale:
        evidence.append(shown(stale, "rollouts that were dropped" + _slower(history, stale)))
    title = "rollouts are dropped for their age before they are trained"
    if starved:
        title = f"{len(starved)} of {len(judged)} tasks are rolled out and hardly trained"
    many = len(starved) >= limits["starvation/tasks"] * len(judged) if starved else False
    return found(
        name,
        Status.FAIL if many else Status.WARN,
        title,
        *evidence,
        levers=sampler.wait_for_slow(history.config),
    )


def groups_by_task(history: History) -> list[TaskGroups]:
    """Counts of the groups of each task, as far as rollouts of a run were read."""
    groups: dict[str, dict[str, list[RolloutFacts]]] = {}
    for facts in trained(history).values():
        for fact in facts:
            groups.setdefault(fact.task_id, {}).setdefault(fact.group_id, []).append(fact)
    return [_task(task_id, list(of_task.values())) for task_id, of_task in groups.items()]


def _task(task_id: str, groups: Sequence[Sequence[RolloutFacts]]) -> TaskGroups:
    usable = [any(_may_train(fact) for fact in group) for group in groups]
    stale = [any(map(_is_stale, group)) for group in groups]
    return TaskGroups(
        task_id=task_id,
        rolled_out=len(groups),
        trained=sum(usable),
        dropped=sum(old and not used for old, used in zip(stale, usable, strict=True)),
    )


def _of_tasks(starved: Sequence[TaskGroups], stale: Sequence[RolloutFacts]) -> Evidence:
    names = some_of(
        f"{task.task_id} ({task.rolled_out} groups rolled out, {task.trained} trained)"
        for task in starved
    )
    own = {task.task_id for task in starved}
    steps = [fact.step for fact in stale if fact.task_id in own]
    return Evidence(text=names, first_step=min(steps), last_step=max(steps))


def _slower(history: History, stale: Sequence[RolloutFacts]) -> str:
    """The time that the dropped ones took, against those that are trained, in words."""
    others = [
        fact.duration_s
        for facts in trained(history).values()
        for fact in facts
        if _may_train(fact) and fact.duration_s > 0
    ]
    if not others:
        return ""
    times = fmean(fact.duration_s for fact in stale) / fmean(others)
    return f"; they took {times:.1f} times as long as those that are trained"


def _is_stale(fact: RolloutFacts) -> bool:
    return fact.termination == _STALE


def _may_train(fact: RolloutFacts) -> bool:
    return fact.termination in _IN_LOSS
