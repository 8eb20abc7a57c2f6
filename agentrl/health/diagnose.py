"""All detectors over one history."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean, median
from typing import Any

from agentrl.config.fit import FitConfig
from agentrl.config.keys import leaves
from agentrl.errors import ConfigError, choices
from agentrl.health.detector import Detector
from agentrl.health.detectors import LISTED
from agentrl.health.findings import unknown
from agentrl.health.level import short_rules
from agentrl.health.measures.curves import since
from agentrl.health.measures.onset import onset
from agentrl.health.records import Dating, History, Series, Verdict
from agentrl.health.thresholds import Limits, Threshold
from agentrl.plugins.imports import resolve
from agentrl.plugins.registry import Registry
from agentrl.types.finding import Status


def _entry(name: str, found: Any) -> Detector:
    if isinstance(found, Detector):
        return found
    raise ConfigError(
        f"detector {name!r}: expected a function under @detector(...) of agentrl.health, got "
        f"{type(found).__name__}"
    )


DETECTORS = Registry[Detector]("detector", own="one of yours", entry=_entry)
"""Every detector by its name, in the order in which verdicts are listed."""
for _target in LISTED:
    _found = resolve(f"agentrl.health.detectors.{_target}")
    DETECTORS.add(_found.name, _found, source=_found.judge)
_BUILT_IN: tuple[Detector, ...] = tuple(map(DETECTORS.find, DETECTORS))
THRESHOLDS: tuple[Threshold, ...] = tuple(t for d in _BUILT_IN for t in d.thresholds)
"""Every threshold, by detector."""


def limits(
    overrides: Mapping[str, float] | None = None, *, more: Sequence[Detector] = ()
) -> Limits:
    """The value of every threshold, with `overrides` in place of defaults.

    Args:
        overrides: values by name.
        more: detectors of a user, whose thresholds count, too.

    Raises:
        ConfigError: an unknown name, or a value that is not a finite number.
    """
    own = (item for detector in more for item in detector.thresholds)
    found = {item.name: item.value for item in (*THRESHOLDS, *own)}
    for name, value in (overrides or {}).items():
        if name not in found:
            raise ConfigError(f"health.thresholds: unknown threshold: {choices(name, found)}")
        if isinstance(value, bool) or not math.isfinite(value):
            raise ConfigError(f"health.thresholds.{name} is {value}; expected a finite number")
        found[name] = float(value)
    return found


def diagnose(
    history: History,
    thresholds: Mapping[str, float] | None = None,
    *,
    more: Sequence[Detector] = (),
) -> list[Verdict]:
    """One verdict of every detector, in a fixed order, whatever each found.

    Levers are keys that a file of the run's command knows: a fit has fewer than a run of RL.

    Args:
        history: of a run, whole or so far.
        thresholds: values in place of the defaults, by name; None takes those that the run's own
            config gave.
        more: detectors of a user; they come last.

    Raises:
        ConfigError: `thresholds` names one that does not exist.
    """
    asked = (*_BUILT_IN, *more)
    bounds = limits(own_thresholds(history) if thresholds is None else thresholds, more=more)
    verdicts = [dated(_judged(detector, history, bounds), history) for detector in asked]
    if not any(key.startswith("objective.") for key in history.config):
        return verdicts
    return [
        replace(verdict, levers=tuple(x for x in verdict.levers if x.key in _fit_keys()))
        for verdict in verdicts
    ]


def _judged(detector: Detector, history: History, bounds: Limits) -> Verdict:
    """The verdict; none where a rule was broken in all the steps there are, and wants more."""
    with short_rules() as short:
        verdict = detector(history, bounds)
    return unknown(verdict.name, short[0]) if short and verdict.status is Status.OK else verdict


def dated(verdict: Verdict, history: History) -> Verdict:
    """The verdict with the step at which the fault began in place of the one that showed it."""
    for item in verdict.evidence:
        series = history.metrics.get(item.metric)
        if item.dating is Dating.NONE or item.first_step is None:
            continue
        if item.dating is Dating.EXACT or series is None or series.steps[0] > item.first_step:
            return replace(verdict, first_step=item.first_step)
        seen = None if item.dating is Dating.MOVEMENT else item.first_step
        if seen == series.steps[0]:
            return verdict
        last = series.steps[-1] if item.last_step is None else item.last_step
        if not bisect_right(series.steps, last) > bisect_left(series.steps, item.first_step):
            return replace(verdict, first_step=item.first_step)
        up = _rises(series, item.first_step, last)
        began = onset(series, up=up, seen=seen, last=last)
        return replace(verdict, first_step=item.first_step if began is None else began)
    return verdict


def _rises(series: Series, first: int, last: int) -> bool:
    """True if a stretch of a curve is above what was before it; its end above its start, if none
    was."""
    before = [
        value for step, value in zip(series.steps, series.values, strict=True) if step < first
    ]
    inside = since(series, first)
    values = inside.values[: bisect_right(inside.steps, last)]
    if before:
        return fmean(values) > median(before)
    part = max(1, len(values) // 4)
    return fmean(values[-part:]) > fmean(values[:part])


@cache
def _fit_keys() -> frozenset[str]:
    return frozenset(key.name for key in leaves(FitConfig))


def own_thresholds(history: History) -> dict[str, float]:
    """Thresholds that the run's own config set; names of another version are passed over."""
    prefix = "health.thresholds."
    known = limits()
    found = {
        key.removeprefix(prefix): value
        for key, value in history.config.items()
        if key.startswith(prefix) and isinstance(value, (int, float)) and math.isfinite(value)
    }
    return {name: float(value) for name, value in found.items() if name in known}
