"""Scores of evaluations: their curves, their intervals, and their change by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.health import History, Series
from agentrl.inspect.pages.compare.by_label import families_moved
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import number, shown
from agentrl.inspect.read.safe_terminal import number as digits
from agentrl.inspect.read.task_scores import task_scores
from agentrl.metrics.intervals import paired_difference

_MOVED = 3
"""Tasks named of those that gained most, and of those that lost most."""


def is_fit(config: Mapping[str, Any]) -> bool:
    """True if a run is one of `agentrl fit`."""
    return any(key.startswith("objective.") for key in config)


def score_metrics(curves: Mapping[str, Series], config: Mapping[str, Any]) -> dict[str, str]:
    """Name of each evaluation to the metric that is its score, 0 to 1.

    What a fit calls a score without rollouts is minus its loss; its pairs have an accuracy.
    """
    found: dict[str, str] = {}
    for metric in curves:
        if metric.startswith("eval/") and metric.endswith("/score"):
            place = metric.removesuffix("/score")
            own = [metric]
            if is_fit(config) and f"{metric}_low" not in curves:
                own = [m for kind in ("pref", "rm") if (m := f"{place}/{kind}/accuracy") in curves]
            if own:
                found[place.removeprefix("eval/")] = own[0]
    return found


def eval_answers(reader: RunReader, history: History) -> dict[str, Any]:
    """Score of every evaluation with its interval, its change by task, and the tasks behind it."""
    curves, config = history.metrics, history.config
    found: dict[str, Any] = {}
    for name, metric in score_metrics(curves, config).items():
        curve = curves[metric]
        bounds = [
            dict(zip(c.steps, c.values, strict=True))
            for end in ("_low", "_high")
            if (c := curves.get(metric + end)) is not None
        ]
        ends = None if is_fit(config) else _ends(reader, name, curve.steps)
        low, high = bounds if len(bounds) == 2 else ({}, {})
        found[shown(name)] = {
            "steps": curve.steps,
            "score": curve.values,
            "low": [low.get(step) for step in curve.steps],
            "high": [high.get(step) for step in curve.steps],
            "change": paired_change(*ends) if ends else None,
            "moved": _moved(reader, name, *ends) if ends else None,
        }
    return found


def first_and_last(
    curves: Mapping[str, Series], config: Mapping[str, Any]
) -> tuple[str, float | None, float | None]:
    """Name of an evaluation, its first score and its last; one evaluation is no after.

    The first that the config names: a mean over several would be a score of nothing.
    """
    metrics, order = score_metrics(curves, config), list(config)
    if not metrics:
        return "", None, None

    def order_key(name: str) -> tuple[int, str]:
        key = f"eval.datasets.{name}.source"
        return (order.index(key) if key in order else len(order), name)

    first = min(metrics, key=order_key)
    curve = curves[metrics[first]]
    after = curve.values[-1] if len(curve.steps) > 1 else None
    return first, curve.values[0], after


def paired_change(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any] | None:
    """Mean of `after - before` over the tasks with both, with its interval; None without any.

    Two intervals that overlap say little: the difficulty of the tasks is in both of them.

    Args:
        before: id of a task to its score.
        after: the same, later or of another run.
    """
    change = paired_difference(before, after)
    if not change.n:
        return None
    numbers = {"mean": change.mean, "low": change.low, "high": change.high}
    return {key: number(value) for key, value in numbers.items()} | {"tasks": change.n}


def interval_text(change: Mapping[str, Any]) -> str:
    """A change of `paired_change` in digits, as in `+0.222 [+0.124, +0.320]`."""
    mean, low, high = (digits(change[end], sign=True) for end in ("mean", "low", "high"))
    return mean if change["low"] is None else f"{mean} [{low}, {high}]"


def _moved(
    reader: RunReader, name: str, before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, Any]:
    labels = reader.task_labels.of_kind(f"eval/{name}")
    return {**moved_most(before, after), "families": families_moved(before, after, labels)}


def moved_most(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """The tasks that gained most and lost most: what was learned, and what was forgotten."""
    moved = sorted((after[task] - before[task], task) for task in before if task in after)
    gained = sorted((-by, task) for by, task in moved if by > 0)
    lost = [(by, task) for by, task in moved if by < 0]

    def entries(ordered: Sequence[tuple[float, str]]) -> list[dict[str, Any]]:
        return [
            {"task_id": task, "before": before[task], "after": after[task]}
            for _, task in ordered[:_MOVED]
        ]

    return {
        "gained": entries(gained),
        "lost": entries(lost),
        "gained_count": len(gained),
        "lost_count": len(lost),
        "same_count": len(moved) - len(gained) - len(lost),
    }


def eval_change(reader: RunReader, name: str, steps: Sequence[int]) -> dict[str, Any] | None:
    """Change of an evaluation by task, from its first to its last; None without two."""
    ends = _ends(reader, name, steps)
    return paired_change(*ends) if ends else None


def _ends(
    reader: RunReader, name: str, steps: Sequence[int]
) -> tuple[dict[str, float], dict[str, float]] | None:
    """Scores of all tasks in the first evaluation and in the last, which is another one."""
    if len(steps) < 2:
        return None
    folder, kind = reader.paths.trajectories, f"eval/{name}"
    return task_scores(folder, kind, steps[0]), task_scores(folder, kind, steps[-1])
