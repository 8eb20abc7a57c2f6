"""The step at which a curve left its course: where a fault began, not where it was noticed."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import NDArray

from agentrl.health.records import Series

Values = NDArray[np.float64]

_MOST = 240
"""Values that are fitted; longer curves are averaged in bins first."""
_LEAST = 8
"""Values below which no change point is looked for."""
_EDGE = 2
"""Values that each side of a change has at least."""
_SURE = 10.0
"""By how much the information criterion (BIC) must favour a change over a straight line."""
_SURE_ERRORS = 4.0
"""Standard errors of a slope that make a rise certain."""
_SHARE = 0.25
"""Of the whole movement: a part that moves by less is not the fault."""
_FACTOR = 5.0
"""Over or below the median: a curve that goes so far moves by factors."""
_TIMES = 2.0
"""A rise that was there before has to grow so many times faster to be a fault that begins."""


def onset(
    series: Series, *, up: bool, seen: int | None = None, last: int | None = None
) -> int | None:
    """The step at which the movement began that a finding is about.

    The curve is fitted by least squares with a jump between two levels, and with two straight lines
    that meet; the change that explains most is taken if the Bayesian information criterion
    prefers it to one straight line (Schwarz 1978). Changes before it that go the other way, or that
    slow down, as learning does, are passed over. Growth by factors is fitted in logarithms.

    Args:
        series: the curve.
        up: whether the fault lies in larger values, or else in smaller ones.
        seen: the step at which it was noticed, as where it crossed a bound; None where it is known
            only that the curve moved.
        last: the last step of the finding; None for the newest.

    Returns:
        None where nothing better than `seen` can be said.
    """
    end = len(series.steps) if last is None else bisect_right(series.steps, last)
    if seen is not None:
        # What comes long after it was noticed says little of where it began.
        crossed = bisect_left(series.steps, seen)
        end = min(end, crossed + max(_LEAST, crossed // 4))
    if end < _LEAST:
        return None
    values = np.array(series.values[:end])
    largest = float(np.abs(values).max())
    if largest == 0.0:
        return None
    # Squares of a blow-up would overflow; the step does not depend on the scale.
    steps, values = _binned(series.steps[:end], values / largest)
    values = _scaled(values)
    index = _begin(values if up else -values)
    return None if index is None else steps[index]


def _binned(steps: tuple[int, ...], values: Values) -> tuple[list[int], Values]:
    """At most `_MOST` means with the first step of each."""
    width = -(-len(values) // _MOST)
    if width == 1:
        return list(steps), values
    cuts = np.arange(0, len(values), width)
    sizes = np.diff(np.append(cuts, len(values)))
    return [steps[cut] for cut in cuts], np.add.reduceat(values, cuts) / sizes


def _scaled(values: Values) -> Values:
    """Logarithms of what grows by factors; else the values."""
    middle = float(np.median(values))
    now = float(np.median(values[-max(_EDGE, len(values) // 8) :]))
    if values.min() > 0 and (values.max() > _FACTOR * middle or now < middle / _FACTOR):
        return np.log(values)
    return values


def _begin(values: Values) -> int | None:
    """Index at which the rise began that lasts to the end of `values`."""
    width = max(_EDGE, min(len(values) // 8, 10))
    calm = np.convolve(values, np.ones(width) / width, "valid")
    total = float(calm[-1] - calm.min())
    if total <= 0:
        return None
    start = 0
    while True:
        at = _best(values[start:])
        if at is None:
            return start if start or _surely_rises(values) else None
        before, after = values[start : start + at], values[start + at :]
        later = _best(after)
        steady = max(0.0, _slope(before)) * len(before)
        if _excess(before, after[:later]) > _SHARE * total:
            return _earlier(values, start, start + at, total)
        if steady > _SHARE * total:
            inner = _earlier(values, start, start + at, total)
            if inner < start + at:
                return inner
            if later is None:
                return start
        start += at


def _earlier(values: Values, start: int, at: int, total: float) -> int:
    """An earlier change that the same rise began with: one jump fits a long ramp in its middle."""
    while True:
        part = values[start : at + _EDGE]
        width = min(3, len(part))
        rise = float(part[-width:].mean()) - float(np.median(part[: max(width, len(part) // 2)]))
        first = _best(part)
        if first is None or start + first >= at or rise < _SHARE * total:
            return at
        if _excess(part[:first], part[first:]) < _SHARE * total:
            return at
        at = start + first


def _excess(before: Values, after: Values) -> float:
    """By how much a part rises above what the part before it would have led to."""
    width = min(3, len(before), len(after))
    level = float(before[-width:].mean())
    expected = level + _TIMES * max(0.0, _slope(before)) * len(after)
    return float(np.convolve(after, np.ones(width) / width, "valid").max()) - expected


def _surely_rises(values: Values) -> bool:
    """True if a straight line through all values rises for certain."""
    count = len(values)
    slope = _slope(values)
    x = np.arange(count) - (count - 1) / 2
    rest = values - values.mean() - slope * x
    error = math.sqrt(float(rest @ rest) / (count - 2) / float(x @ x))
    return slope > _SURE_ERRORS * error


def _slope(values: Values) -> float:
    """Of the least-squares line, a value; 0 for fewer than two."""
    x = np.arange(len(values)) - (len(values) - 1) / 2
    across = float(x @ x)
    return float(x @ values) / across if across else 0.0


def _best(values: Values) -> int | None:
    """Index of the first value after the change that explains most of a curve; None without one."""
    count = len(values)
    if count < 2 * _EDGE + 2:
        return None
    y = values - values.mean()
    x = np.linspace(-1.0, 1.0, count)
    places = np.arange(_EDGE, count - _EDGE + 1)
    ones, line = np.ones((len(places), count)), np.broadcast_to(x, (len(places), count))
    late = (np.arange(count) >= places[:, None]).astype(np.float64)
    # Two lines meet before the first value that has moved.
    bent = np.maximum(0.0, x - x[places - 1][:, None])
    floor = 1e-12 * max(1e-12, float(np.ptp(values)) ** 2) * count

    def criterion(*columns: Values, changes: int) -> Values:
        left = np.maximum(_errors(y, np.stack(columns, 2)), floor) / count
        return count * np.log(left) + (len(columns) + changes) * math.log(count)

    straight = min(
        float(criterion(ones[:1], changes=0)[0]), float(criterion(ones[:1], line[:1], changes=0)[0])
    )
    changed = np.minimum.reduce(
        [
            criterion(ones, late, changes=1),
            criterion(ones, bent, changes=1),
            criterion(ones, line, bent, changes=1),
            criterion(ones, line, late, changes=1),
        ]
    )
    best = int(changed.argmin())
    return int(places[best]) if straight - changed[best] > _SURE else None


def _errors(values: Values, columns: Values) -> Values:
    """[places] Sums of squares that least-squares fits leave.

    Args:
        values: [n] what is fitted.
        columns: [places, n, parameters] of each fit.
    """
    turned = columns.transpose(0, 2, 1)
    # A column that says what another says already adds nothing.
    normal = turned @ columns + 1e-10 * np.eye(columns.shape[2])
    right = turned @ values
    weights = np.linalg.solve(normal, right[:, :, None])[:, :, 0]
    return float(values @ values) - (weights * right).sum(axis=1)
