"""Movement of a curve of training from its first steps to its last, with its 95 % interval.

Every part that says whether the reward rose takes it from here: detectors, `agentrl doctor`, the
first screen and the view of hacking. So they compare the same steps and have the same interval.

Where few steps stand at either end, two means of two numbers each say next to nothing. Rollouts of
these steps do: the unit is then the task, as it is in the score of an evaluation, since siblings
are alike and each step draws its own tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from agentrl.health.measures.curves import Change, IntervalUnit, change, difference, end_width
from agentrl.health.records import LARGEST, History, RolloutFacts, Series

FEW: Final = 5
"""Steps at either end below which the interval is taken over tasks."""
_PREFIX, _SUFFIX = "rewards/", "/mean"


def movement(history: History, metric: str) -> Change | None:
    """Change of a metric of training between its ends; None where it has fewer than 4 steps.

    The levels are means of the curve. An interval that is wider than the range of the rollouts is
    none: it is given as `IntervalUnit.NONE`, and is not certain of anything.

    Args:
        history: of a run; its sampled rollouts give the interval of short curves.
        metric: `reward`, `score` or `rewards/PART/mean`; any other is compared by its steps alone.
    """
    series = history.metrics.get(metric)
    found = change(series) if series else None
    if series is None or found is None:
        return None
    values = _by_step(history.rollouts, _reader_of(metric))
    width = end_width(series)
    if width < FEW:
        ends = [
            _task_means(values, steps) for steps in (series.steps[:width], series.steps[-width:])
        ]
        if min(map(len, ends)) >= 2:
            moved = difference(*ends)
            half = moved.high - moved.gain
            found = replace(
                found, low=found.gain - half, high=found.gain + half, over=IntervalUnit.TASKS
            )
    return _possible(found, _reach(values, series))


def part_metrics(history: History) -> dict[str, str]:
    """Name of each part of the reward that is logged, to its metric."""
    return {
        metric.removeprefix(_PREFIX).removesuffix(_SUFFIX): metric
        for metric in history.metrics
        if metric.startswith(_PREFIX) and metric.endswith(_SUFFIX)
    }


def _reader_of(metric: str) -> Callable[[RolloutFacts], float | None]:
    """The number of a rollout whose mean a metric is."""
    if metric == "reward":
        return lambda fact: fact.reward
    if metric == "score":
        return lambda fact: fact.reward if fact.score is None else fact.score
    part = metric.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    return lambda fact: fact.parts.get(part)


def _by_step(
    facts: Sequence[RolloutFacts], read: Callable[[RolloutFacts], float | None]
) -> dict[int, dict[str, list[float]]]:
    """Step to task to the values of its training rollouts."""
    found: dict[int, dict[str, list[float]]] = {}
    for fact in facts:
        value = read(fact) if fact.kind == "train" else None
        if value is not None and abs(value) <= LARGEST:
            found.setdefault(fact.step, {}).setdefault(fact.task_id, []).append(value)
    return found


def _task_means(
    values: Mapping[int, Mapping[str, Sequence[float]]], steps: Sequence[int]
) -> list[float]:
    """Mean of each task over these steps; empty unless rollouts of all of them are known."""
    if any(step not in values for step in steps):
        return []
    tasks: dict[str, list[float]] = {}
    for step in steps:
        for task, of in values[step].items():
            tasks.setdefault(task, []).extend(of)
    return [fmean(of) for of in tasks.values()]


def _reach(values: Mapping[int, Mapping[str, Sequence[float]]], series: Series) -> float | None:
    """Distance from the lowest to the highest value of a rollout; None where it is not known."""
    known = [value for tasks in values.values() for of in tasks.values() for value in of]
    if known:
        # A mean of rollouts that were not sampled may lie beyond those that were.
        return max(*known, *series.values) - min(*known, *series.values)
    return 1.0 if min(series.values) >= 0 and max(series.values) <= 1 else None


def _possible(found: Change, reach: float | None) -> Change:
    """The change with an interval that a change can lie in."""
    if reach is None:
        return found
    bounded = replace(found, low=max(found.low, -reach), high=min(found.high, reach))
    if bounded.high - bounded.low > reach:
        return replace(bounded, over=IntervalUnit.NONE)
    return bounded
