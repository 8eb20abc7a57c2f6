"""All detectors over one history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from agentrl.config.fit import FitConfig
from agentrl.config.keys import leaves
from agentrl.errors import ConfigError, choices
from agentrl.health.detector import Detector
from agentrl.health.detectors import LISTED
from agentrl.health.records import History, Verdict
from agentrl.health.thresholds import Limits, Threshold
from agentrl.imports import resolve
from agentrl.registry import Registry


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
    bounds = limits(own_thresholds(history) if thresholds is None else thresholds, more=more)
    verdicts = [detector(history, bounds) for detector in (*_BUILT_IN, *more)]
    if not any(key.startswith("objective.") for key in history.config):
        return verdicts
    return [
        replace(verdict, levers=tuple(x for x in verdict.levers if x.key in _fit_keys()))
        for verdict in verdicts
    ]


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
        if key.startswith(prefix) and isinstance(value, (int, float))
    }
    return {name: float(value) for name, value in found.items() if name in known}
