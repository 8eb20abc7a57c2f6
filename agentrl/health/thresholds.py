"""The bounds that detectors compare with, as data: name, value and where it is from.

`health.thresholds` of the config, or `agentrl doctor --set`, replaces a value by its name.
Sources: `guide 7.1` and the like are parts of the project's guide to running RL ("The Minimum
Dashboard", "The Five Canonical Failure Modes", "Prevention", "Pre-Flight Checklist"); `ours` are
numbers that the guide only describes in words, tuned on one half of the streams of
benchmarks/health/detectors.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SEED_7_1 = "guide 7.1"
SEED_7_2 = "guide 7.2"
SEED_7_4 = "guide 7.4"
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
