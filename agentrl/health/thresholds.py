"""The bounds that detectors compare with, as data: name, value and where it is from.

`health.thresholds` of the config, or `agentrl doctor --set`, replaces a value by its name.
Sources: `usual` is a bound that practice has settled on (published recipes and dashboards of RL for
language models); `ours` are tuned on one half of the streams of benchmarks/health/detectors.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

USUAL = "usual"
OURS = "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One bound of one detector."""

    name: str
    """`DETECTOR/WHAT`; no dots, so that it can be set as a dotted config key."""
    value: float
    """Value unless the config sets another."""
    what: str
    """Quantity that is compared with it, unit included."""
    source: str
    """Origin of the number."""


def bound(name: str, value: float, what: str, source: str) -> Threshold:
    """A threshold for `@detector(...)`, which puts the detector's name before its own.

    Args:
        name: as in `floor`; one with a slash, shared by detectors, stays as it is.
        value: the default.
        what: what is compared with it, unit included.
        source: where the number is from.
    """
    return Threshold(name=name, value=value, what=what, source=source)


Limits = Mapping[str, float]
"""Value of every threshold, by name."""
