"""Metrics as mergeable parts: (sum, count), sum, max or min, divided once at the end.

Averages of averages are wrong as soon as the parts differ in size, so a mean travels as its sum
and its count until `result` divides.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Literal

Reduction = Literal["mean", "sum", "max", "min"]


logger = logging.getLogger(__name__)

MOST_NAMES = 2000
"""Names of a bag that users or models chose; a line of metrics has to stay one that is read."""
_CHOSEN = ("env/", "rewards/", "tools/by_name/")


class MetricBag:
    """Collects named values; bags of many workers merge into one.

    Example:
        >>> a, b = MetricBag(), MetricBag()
        >>> a.mean("reward", 1.0, count=1); b.mean("reward", 0.0, count=3)
        >>> a.merge(b); a.result()
        {'reward': 0.25}
    """

    def __init__(self) -> None:
        self._parts: dict[str, tuple[Reduction, float, float]] = {}
        self._chosen = 0

    def mean(self, name: str, total: float, *, count: float = 1.0) -> None:
        """Add `total`, the sum over `count` items."""
        self._add(name, "mean", total, count)

    def sum(self, name: str, value: float) -> None:
        """Add to a running sum."""
        self._add(name, "sum", value, 1.0)

    def max(self, name: str, value: float) -> None:
        """Keep the largest value of a metric."""
        self._add(name, "max", value, 1.0)

    def min(self, name: str, value: float) -> None:
        """Keep the smallest value of a metric."""
        self._add(name, "min", value, 1.0)

    def add_marked(self, values: Mapping[str, float], *, prefix: str = "") -> None:
        """Add user metrics whose names end in `@sum`, `@max`, `@min` or `@mean` (the default)."""
        for marked, value in values.items():
            name, _, mark = marked.partition("@")
            if mark not in ("", "mean", "sum", "max", "min"):
                raise ValueError(
                    f"metric {marked!r}: unknown reduction {mark!r}; valid: @mean, @sum, @max, @min"
                )
            self._add(prefix + name, mark or "mean", float(value), 1.0)  # type: ignore[arg-type]

    def merge(self, other: MetricBag) -> None:
        """Take over everything in `other`."""
        for name, (rule, value, count) in other._parts.items():
            self._add(name, rule, value, count)

    def result(self) -> dict[str, float]:
        """Each name reduced to one number; a mean over nothing is left out."""
        out: dict[str, float] = {}
        for name, (rule, value, count) in sorted(self._parts.items()):
            if rule == "mean":
                if count > 0:
                    out[name] = value / count
            else:
                out[name] = value
        return out

    def _add(self, name: str, rule: Reduction, value: float, count: float) -> None:
        have = self._parts.get(name)
        if have is None:
            if not name.startswith(_CHOSEN) or self._has_room():
                self._parts[name] = (rule, value, count)
            return
        old_rule, old_value, old_count = have
        if old_rule != rule:
            raise ValueError(f"metric {name!r} is both {old_rule!r} and {rule!r}")
        if rule == "max":
            value = value if math.isnan(value) else max(old_value, value)
        elif rule == "min":
            value = value if math.isnan(value) else min(old_value, value)
        else:
            value += old_value
        self._parts[name] = (rule, value, old_count + count)

    def _has_room(self) -> bool:
        """Count one more name that is not ours; the first that is too many is logged."""
        self._chosen += 1
        if self._chosen == MOST_NAMES + 1:
            logger.warning(
                "more than %d names of metrics in extra_logs, reward_parts and tools: the rest is "
                "left out; a name that differs from task to task is no metric",
                MOST_NAMES,
            )
        return self._chosen <= MOST_NAMES
