"""Steps at which a stream's faults begin and end, and curves that begin there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from blind.draws import Curve
from blind.texts import Text, mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When things happen in one stream; steps count from 1."""

    steps: int
    """Length of the run."""
    onset: int
    """First step that the fault, or a sound run's event, touches; beyond the run where none is."""
    over: int | None = None
    """First step after a fault that healed."""
    second: int | None = None
    """Onset of the second fault."""

    def since(self, first: int | None = None) -> Curve:
        """[steps] 0 before `first`, 1 at it, then one more each step; None takes the onset."""
        first = self.onset if first is None else first
        return np.maximum(0.0, np.arange(1, self.steps + 1) - first + 1.0)

    def on(self, first: int | None = None) -> Curve:
        """[steps] 1 from `first` until the fault is over, else 0."""
        return self.ramp(1, first)

    def ramp(self, width: int, first: int | None = None) -> Curve:
        """[steps] From 0 before `first` to 1 within `width` steps; 0 once the fault is over."""
        ends = self.steps + 1 if self.over is None or first is not None else self.over
        return np.clip(self.since(first) / width, 0, 1) * (np.arange(1, self.steps + 1) < ends)

    def held(self, curve: Curve, first: int | None = None) -> Curve:
        """[steps] The curve until `first`, then its value there: nothing more is learned."""
        first = self.onset if first is None else first
        return np.where(np.arange(1, self.steps + 1) < first, curve, curve[first - 1])

    def texts(
        self, sound: Text, broken: Text, share: float, width: int = 1, first: int | None = None
    ) -> Text:
        """Texts of which `share` is broken from `first` on, reached within `width` steps."""
        level = share * self.ramp(width, first)
        return mixed(sound, broken, lambda over: float(level[round(over * self.steps) - 1]))
