"""Statistics of a curve with their confidence: its level, its movement, and since when."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median, pvariance

from agentrl.health.records import Series
from agentrl.metrics.intervals import t_quantile

_Z = 1.959963984540054


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Logged steps in a row whose values pass one test, or most of which do."""

    first_step: int
    """First step of the stretch."""
    last_step: int
    """Last step of the stretch."""
    length: int
    """Logged steps in it; steps that do not log the metric are passed over."""
    passing: int
    """Those of them whose value passes the test."""
    worst: float
    """The value farthest from zero of those that pass."""


class IntervalUnit(StrEnum):
    """The unit over which an interval is taken."""

    STEPS = "steps"
    """Values of steps, or evaluations with the error of each."""
    TASKS = "tasks"
    """Means of tasks, of the rollouts of a few steps."""
    NONE = ""
    """There is no interval: what is known allows nearly any change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Movement of a quantity, with its 95 % interval."""

    start: float
    """Level at the start."""
    end: float
    """Level at the end."""
    low: float
    """Lower end of the interval of `end - start`."""
    high: float
    """Upper end of it."""
    over: IntervalUnit = IntervalUnit.STEPS
    """Unit of the interval."""

    @property
    def gain(self) -> float:
        """Difference `end - start` of the levels."""
        return self.end - self.start

    @property
    def up(self) -> bool:
        """True if it rose for certain."""
        return self.over is not IntervalUnit.NONE and self.low > 0

    @property
    def down(self) -> bool:
        """True if it fell for certain."""
        return self.over is not IntervalUnit.NONE and self.high < 0

    def text(self, write: Callable[[float], str] | None = None) -> str:
        """As in `0.25 -> 0.48 (+0.22 [+0.12, +0.32])`.

        Args:
            write: of one number; None takes `number`, and shares want `percent`.
        """
        write = write or number
        ends = f"[{_signed(self.low, write)}, {_signed(self.high, write)}]"
        if self.over is IntervalUnit.NONE:
            ends = "with too few rollouts for an interval"
        gain = _signed(self.gain, write) if self.gain else f"+{write(0.0)}"
        return f"{write(self.start)} -> {write(self.end)} ({gain} {ends})"


def _signed(value: float, write: Callable[[float], str]) -> str:
    """A change, with a plus where it is above 0."""
    return f"+{write(value)}" if value > 0 else write(value)


def number(value: float) -> str:
    """Three digits, as people read them.

    Example:
        >>> [number(v) for v in (0.012345, 1234.5, 0.0, 3e-7)]
        ['0.0123', '1234', '0', '3e-07']
    """
    if abs(value) >= 1000:
        return f"{value:.0f}"
    text = f"{value:.3g}"
    return "0" if text == "-0" else text


def percent(value: float) -> str:
    """A share from 0 to 1 in percent, with three digits.

    Example:
        >>> [percent(v) for v in (1.0, 0.12345, 0.0)]
        ['100 %', '12.3 %', '0 %']
    """
    return f"{number(100 * value)} %"


def levels(series: Series, width: int) -> tuple[float, float]:
    """Medians of the first and of the last `width` values."""
    return median(series.values[:width]), median(series.values[-width:])


def stretches(series: Series, test: Callable[[float], bool]) -> list[Stretch]:
    """All stretches whose values pass `test`, in order."""
    found: list[Stretch] = []
    begin: int | None = None
    for index, value in enumerate((*series.values, None)):
        if value is not None and test(value):
            begin = index if begin is None else begin
        elif begin is not None:
            part = series.values[begin:index]
            found.append(
                Stretch(
                    first_step=series.steps[begin],
                    last_step=series.steps[index - 1],
                    length=len(part),
                    passing=len(part),
                    worst=max(part, key=abs),
                )
            )
            begin = None
    return found


def current(series: Series, test: Callable[[float], bool]) -> Stretch | None:
    """The stretch that lasts to the newest value; None where that does not pass."""
    last = next(reversed(stretches(series, test)), None)
    return last if last is not None and last.last_step == series.steps[-1] else None


def change(series: Series, width: int | None = None) -> Change | None:
    """From the first to the last `width` values, with Welch's t interval of the difference.

    Args:
        series: at least 4 values, or None comes back.
        width: None takes a quarter of the curve, 2 to 10.
    """
    if len(series.values) < 4:
        return None
    width = end_width(series, width)
    return difference(series.values[:width], series.values[-width:])


def end_width(series: Series, width: int | None = None) -> int:
    """Number of values that `change` takes at either end."""
    count = len(series.values)
    return min(width or max(2, min(10, count // 4)), count // 2)


def width_of_parts(count: int) -> int:
    """Number of steps that are counted at either end of so many stored ones.

    As many as `change` compares of a curve of so many values, but never none.
    """
    return max(1, min(max(2, min(10, count // 4)), count // 2))


def end_steps(series: Series) -> tuple[tuple[int, int], tuple[int, int]]:
    """First and last step of the values that `change` takes at the start, and at the end."""
    width, steps = end_width(series), series.steps
    return (steps[0], steps[width - 1]), (steps[-width], steps[-1])


def difference(before: Sequence[float], after: Sequence[float]) -> Change:
    """Mean of `after` minus mean of `before`, 2 or more values each (Welch 1947)."""
    errors = [pvariance(part) / (len(part) - 1) for part in (before, after)]
    total = sum(errors)
    half = 0.0
    if total > 0:
        parts = zip(errors, (before, after), strict=True)
        # Shares of the whole, whose squares neither overflow nor vanish.
        df = 1 / sum((error / total) ** 2 / (len(part) - 1) for error, part in parts)
        half = t_quantile(max(1.0, df)) * math.sqrt(total)
    start, end = fmean(before), fmean(after)
    low, high = end - start - half, end - start + half
    if all(0 <= value <= 1 for part in (before, after) for value in part):
        low, high = max(low, -1.0), min(high, 1.0)  # shares differ by no more
    return Change(start=start, end=end, low=low, high=high)


def trend(series: Series, errors: Sequence[float] | None = None) -> Change | None:
    """The rise of the least-squares line from the first to the last step.

    The interval of the slope is Student's over the residuals; where the standard error of each
    value is known, as for evaluations, it comes from those instead (weighted least squares).

    Args:
        series: at least 3 values at different steps; 2 will do where `errors` are known.
        errors: standard error of each value, all above 0.
    """
    count = len(series.values)
    if count < (2 if errors else 3):
        return None
    weights = [1 / error**2 for error in errors] if errors else [1.0] * count
    total = sum(weights)
    middle = sum(w * x for w, x in zip(weights, series.steps, strict=True)) / total
    level = sum(w * y for w, y in zip(weights, series.values, strict=True)) / total
    across = [x - middle for x in series.steps]
    spread = sum(w * x * x for w, x in zip(weights, across, strict=True))
    if spread == 0:
        return None
    slope = (
        sum(w * x * (y - level) for w, x, y in zip(weights, across, series.values, strict=True))
        / spread
    )
    if errors:
        half = _Z / math.sqrt(spread)
    else:
        left = (y - level - slope * x for x, y in zip(across, series.values, strict=True))
        half = t_quantile(count - 2) * math.sqrt(sum(r * r for r in left) / (count - 2) / spread)
    length = series.steps[-1] - series.steps[0]
    start, end = (level + slope * (step - middle) for step in (series.steps[0], series.steps[-1]))
    return Change(start=start, end=end, low=(slope - half) * length, high=(slope + half) * length)


def weighted_slope(
    positions: Sequence[float], values: Sequence[float], errors: Sequence[float]
) -> tuple[float, float] | None:
    """Slope of the least-squares line and its standard error, where that of each value is known.

    Example:
        >>> weighted_slope([0.0, 1.0], [0.2, 0.5], [0.1, 0.1])
        (0.3, 0.14142135623730953)
    """
    weights = [1 / error**2 for error in errors]
    middle = sum(w * x for w, x in zip(weights, positions, strict=True)) / sum(weights)
    across = [x - middle for x in positions]
    spread = sum(w * x * x for w, x in zip(weights, across, strict=True))
    if spread <= 0:
        return None
    slope = sum(w * x * y for w, x, y in zip(weights, across, values, strict=True)) / spread
    return slope, 1 / math.sqrt(spread)


def smoothed(series: Series, width: int) -> Series:
    """Means over windows of `width` values, each at its last step."""
    width = min(width, len(series.values))
    sums = [
        fmean(series.values[index - width + 1 : index + 1])
        for index in range(width - 1, len(series.values))
    ]
    return Series(steps=series.steps[width - 1 :], values=tuple(sums))


def medians(series: Series, width: int) -> Series:
    """Medians over windows of `width` values, each at its last step."""
    width = min(width, len(series.values))
    found = tuple(
        median(series.values[index - width + 1 : index + 1])
        for index in range(width - 1, len(series.values))
    )
    return Series(steps=series.steps[width - 1 :], values=found)


def since(series: Series, step: int) -> Series:
    """The part of a curve from `step` on; may be empty."""
    kept = [(s, v) for s, v in zip(series.steps, series.values, strict=True) if s >= step]
    return Series(steps=tuple(s for s, _ in kept), values=tuple(v for _, v in kept))
