"""All detectors over one history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.config.imports import resolve
from agentrl.errors import ConfigError, choices
from agentrl.health import detectors
from agentrl.health.detector import Detector
from agentrl.health.records import History, Verdict
from agentrl.health.thresholds import Limits, Threshold


def find_detector(name: str, *, base: Path | None = None) -> Detector:
    """A detector by its name, or one of a user by its import string.

    Args:
        name: as in `kl_too_large` or `my_detectors.py:silence`.
        base: folder that a relative file path starts from; default the working directory.

    Raises:
        ConfigError: there is none, or the string names something else.
    """
    if ":" not in name:
        if name not in DETECTORS:
            raise ConfigError(f"detector: {choices(name, DETECTORS)}, or give FILE.py:NAME")
        return DETECTORS[name]
    found = resolve(name, base=base)
    if not isinstance(found, Detector):
        raise ConfigError(
            f"detector {name!r}: expected a function under @detector(...) of "
            f"agentrl.health.detector, got {type(found).__name__}"
        )
    return found


def _built_in() -> dict[str, Detector]:
    found = [find_detector(f"{detectors.__name__}.{target}") for target in detectors.LISTED]
    return {item.name: item for item in found}


DETECTORS: Mapping[str, Detector] = _built_in()
"""Every detector of agentrl by its name, in the order in which verdicts are listed."""
THRESHOLDS: tuple[Threshold, ...] = tuple(t for d in DETECTORS.values() for t in d.thresholds)
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

    Args:
        history: of a run, whole or so far.
        thresholds: values in place of the defaults, by name; None takes those that the run's own
            config gave.
        more: detectors of a user; they come last.

    Raises:
        ConfigError: `thresholds` names one that does not exist.
    """
    bounds = limits(own_thresholds(history) if thresholds is None else thresholds, more=more)
    return [detector(history, bounds) for detector in (*DETECTORS.values(), *more)]


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
