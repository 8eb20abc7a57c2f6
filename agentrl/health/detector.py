"""The contract of a detector: a pure function of a run's history, and the bounds it brings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agentrl.health.records import History, Verdict
from agentrl.health.thresholds import Limits, Threshold

Judge = Callable[[History, Limits], Verdict]
"""A pure function: no file, no clock, no state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """A named function that judges runs, with the thresholds it compares with."""

    name: str
    """Name of the function, as in `entropy_collapse`."""
    judge: Judge
    """Judges one history."""
    thresholds: tuple[Threshold, ...]
    """Bounds that only this detector declares; others may read them, too."""
    remembered: bool = False
    """Whether a finding stays for some steps after it was last made: a movement that is certain by
    its interval at one step need not be so at the next."""

    def __call__(self, history: History, limits: Limits) -> Verdict:
        """Judge one history with these values of all thresholds."""
        return self.judge(history, limits)


def detector(*bounds: Threshold, remembered: bool = False) -> Callable[[Judge], Detector]:
    """Make a function the detector of its name.

    Example:
        >>> @detector(bound("most", 0.5, "share of rollouts without an answer", "ours"))
        ... def silence(history, limits):
        ...     return unknown("silence", "nothing is logged")
    """

    def made(function: Judge) -> Detector:
        name = function.__name__
        own = (b if "/" in b.name else replace(b, name=f"{name}/{b.name}") for b in bounds)
        return Detector(name=name, judge=function, thresholds=tuple(own), remembered=remembered)

    return made
