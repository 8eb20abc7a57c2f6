"""Curves that are counts of events a step; a count that is 0 is not logged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from agentrl.health.records import History, Series

RECENT = 10
"""Latest steps over which events are counted."""


def summed(parts: Iterable[Series]) -> Series:
    """The sum of counts by step."""
    by_step = Counter[int]()
    for part in parts:
        by_step.update(dict(zip(part.steps, part.values, strict=True)))
    steps = tuple(sorted(by_step))
    return Series(steps=steps, values=tuple(float(by_step[step]) for step in steps))


def shares(whole: Series, parts: Iterable[Series | None]) -> Series:
    """The sum of `parts` over `whole`, between 0 and 1, at the steps of `whole`."""
    sums = summed(part for part in parts if part is not None)
    known = dict(zip(sums.steps, sums.values, strict=True))
    values = zip(whole.steps, whole.values, strict=True)
    return Series(
        steps=whole.steps,
        values=tuple(
            min(1.0, max(0.0, known.get(step, 0.0) / count)) if count else 0.0
            for step, count in values
        ),
    )


def recent_count(history: History, series: Series | None) -> int:
    """Events in the latest steps of the run."""
    first = newest_step(history) - RECENT + 1
    return count_between(series, first, newest_step(history))


def count_between(series: Series | None, first: int, last: int) -> int:
    """Events in some steps, both ends included."""
    if series is None:
        return 0
    pairs = zip(series.steps, series.values, strict=True)
    return round(sum(value for step, value in pairs if first <= step <= last))


def newest_step(history: History) -> int:
    """The newest step of any curve; 0 without one."""
    return max((series.steps[-1] for series in history.metrics.values()), default=0)
