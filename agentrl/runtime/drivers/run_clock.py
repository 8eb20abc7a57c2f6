"""Time of a run over all its processes, against `train.max_minutes`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from agentrl.metrics import MetricBag

_RECENT = 5
"""Steps of which the longest is expected next."""


class RunClock:
    """Wall time without pauses, and the time that the config leaves."""

    def __init__(
        self,
        max_minutes: float | None,
        *,
        elapsed_s: float,
        step_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Go on with an earlier process of the run.

        Args:
            max_minutes: as in the config; None never ends.
            elapsed_s: what earlier processes took, in seconds.
            step_s: what their last step took, in seconds; 0 if there was none.
            now: a clock that never goes back, in seconds.
        """
        self._limit_s = None if max_minutes is None else max_minutes * 60
        self.now = now
        """The clock that everything a driver measures is measured with, in seconds."""
        self._began = now() - elapsed_s
        self._is_up = False
        self._steps_s = deque([step_s], maxlen=_RECENT)
        self._checkpoint_s = 0.0
        self._saved = False

    @property
    def checkpoint_s(self) -> float:
        """Seconds of the last checkpoint; 0 before the first."""
        return self._checkpoint_s

    def note_checkpoint(self, seconds: float) -> None:
        """Count a checkpoint, which the metrics of the next step have, and no later one's."""
        self._checkpoint_s, self._saved = seconds, True

    @property
    def elapsed_s(self) -> float:
        """Wall time over all processes of the run in seconds, without pauses."""
        return self.now() - self._began

    def exclude(self, seconds: float) -> None:
        """Count a pause neither as time of the run nor for `train.max_minutes`."""
        self._began += seconds

    def is_up(self, *, evaluation_s: float) -> bool:
        """Another step would leave no time for the final evaluation.

        Once it is up it stays so: the final evaluation follows, and one that was shorter than
        expected is not a reason for another step and another final evaluation.

        Args:
            evaluation_s: what the last evaluation took.
        """
        if self._limit_s is not None:
            # The longest of some steps: the last one says little of the next.
            owed_s = max(self._steps_s) + evaluation_s + self._checkpoint_s
            self._is_up = self._is_up or self.elapsed_s + owed_s > self._limit_s
        return self._is_up

    def note_step(self, seconds: float, *, fresh: bool) -> MetricBag:
        """The durations of a step that has ended, as metrics.

        Args:
            seconds: it took.
            fresh: it was rolled out, and not replayed.
        """
        bag = MetricBag()
        bag.sum("timing_s/step", seconds)
        bag.sum("timing_s/elapsed", self.elapsed_s)
        if self._saved:
            bag.sum("timing_s/checkpoint", self._checkpoint_s)
            self._saved = False
        if fresh:
            self._steps_s.append(seconds)
        return bag
