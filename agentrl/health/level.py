"""The rule by which a level counts: for most steps of a window, and until it is clearly over.

Every detector that asks whether a curve is beyond a bound asks here, so that none changes its mind
from one step to the next while the run does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate
from statistics import fmean

from agentrl.health.measures.curves import Stretch, number
from agentrl.health.records import History, Series

_MOST = 0.8
"""Share of the steps of a window that have to pass for a level to count."""
_LOOK_BACK = 10
"""Latest steps that decide when it is over."""
_LEFT = 0.3
"""Share of these that have to pass for it to go on."""

Test = Callable[[float], bool]
"""True for a value beyond the bound."""


def held(series: Series, test: Test, steps: float, *, mean: bool = False) -> list[Stretch]:
    """Periods in which a level counts, in order.

    One begins where four of five of the last `steps` values pass, and ends where fewer than three
    of ten do. So it takes other steps to end it than to begin it, and what swings around a bound
    makes one period. It is as long as from its first value that passes to its last.

    Args:
        series: the curve.
        test: true for values beyond the bound.
        steps: logged values of the window.
        mean: true for shares, whose mean over the window counts as well: where a batch is small,
            its shares jump across the bound although that of all rollouts is far beyond.
    """
    width, values = max(1, int(steps)), series.values
    passes = [test(value) for value in values]
    passed = [0, *accumulate(passes)]
    found: list[Stretch] = []
    begin: int | None = None
    free = 0

    def counts(first: int, end: int, least: float) -> bool:
        if passed[end] - passed[first] >= math.ceil(least * (end - first) - 1e-9):
            return True
        return mean and test(fmean(values[first:end]))

    for end in range(1, len(values) + 1):
        first = end - width
        if begin is None and first >= free and counts(first, end, _MOST):
            begin = next((at for at in range(first, end) if passes[at]), first)
        elif begin is not None and not counts(max(begin, end - _LOOK_BACK), end, _LEFT):
            found.append(_period(series, passes, begin, end))
            begin, free = None, end
    if begin is not None:
        found.append(_period(series, passes, begin, len(values), now=True))
    return found


def _period(
    series: Series, passes: Sequence[bool], begin: int, end: int, *, now: bool = False
) -> Stretch:
    """The period of values `begin` to `end`; one that is over ends with its last that passes."""
    places = [at for at in range(begin, end) if passes[at]] or list(range(begin, end))
    last = end - 1 if now else places[-1]
    return Stretch(
        first_step=series.steps[begin],
        last_step=series.steps[last],
        length=last - begin + 1,
        passing=len(places),
        worst=max((series.values[at] for at in places), key=abs),
    )


_SHORT: ContextVar[list[str] | None] = ContextVar("_SHORT", default=None)


@contextmanager
def short_rules() -> Iterator[list[str]]:
    """Collect, in words, the rules of the block that broke and want more steps than there are.

    A detector that finds nothing because of them has not judged the run.
    """
    words: list[str] = []
    token = _SHORT.set(words)
    try:
        yield words
    finally:
        _SHORT.reset(token)


def lasting(
    history: History, metric: str, test: Test, steps: float, *, mean: bool = False
) -> tuple[Stretch | None, bool]:
    """The latest period in which a level counts, and whether it goes on now.

    For what does harm even when it is over: what was learned meanwhile stays.
    """
    series = history.metrics.get(metric)
    if series is None:
        return None, False
    periods = held(series, test, steps, mean=mean)
    if periods:
        return periods[-1], periods[-1].last_step == series.steps[-1]
    words, value = _SHORT.get(), series.values[-1]
    if words is not None and len(series.values) < steps and test(value):
        words.append(
            f"{metric} is beyond its bound ({number(value)}) and has {len(series.values)} of the "
            f"{steps:.0f} steps that the rule wants"
        )
    return None, False


def sustained(
    history: History, metric: str, test: Test, steps: float, *, mean: bool = False
) -> Stretch | None:
    """The period in which a level counts and that goes on now."""
    period, now = lasting(history, metric, test, steps, mean=mean)
    return period if now else None


def steps_text(stretch: Stretch) -> str:
    """As in `12 steps, 20-31`, or `10 of 12 steps, 20-31`."""
    if stretch.length == 1:
        return f"step {stretch.first_step}"
    some = "" if stretch.passing == stretch.length else f"{stretch.passing} of "
    return f"{some}{stretch.length} steps, {stretch.first_step}-{stretch.last_step}"
