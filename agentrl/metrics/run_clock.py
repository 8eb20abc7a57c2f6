"""Time of a run or a fit over all its processes, against `train.max_minutes`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from agentrl.metrics import MetricBag

_RECENT = 5
"""Steps, or evaluations, of which the longest is expected next."""
_SLOWER, _OVER = 1.25, 0.05
"""What is ahead may take so many times what is expected, and the run end so much over its limit."""


def expected_s(durations: Sequence[float]) -> float:
    """Seconds that the next of some evaluations takes: as the longest of late, more if they grow.

    Example:
        >>> expected_s([20.0, 10.0]), expected_s([10.0, 15.0, 20.0]), expected_s([])
        (20.0, 25.0, 0.0)
    """
    late = durations[-_RECENT:]
    # One slow evaluation is no growth.
    growth = min((after - before for before, after in pairwise(late[-3:])), default=0.0)
    grown = late[-1] + growth if len(late) > 2 else 0.0
    return max([0.0, *late, grown])


class RunClock:
    """Wall time without pauses, and the time that the config leaves."""

    def __init__(
        self,
        max_minutes: float | None,
        *,
        elapsed_s: float,
        step_s: float = 0.0,
        checkpoint_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Go on with an earlier process of the run.

        Args:
            max_minutes: as in the config; None never ends.
            elapsed_s: what earlier processes took, in seconds.
            step_s: what their last step took, in seconds; 0 if there was none.
            checkpoint_s: likewise, their last checkpoint.
            now: a clock that never goes back, in seconds.
        """
        self._limit_s = None if max_minutes is None else max_minutes * 60
        self.now = now
        """The clock that everything a driver measures is measured with, in seconds."""
        self._began = now() - elapsed_s
        self._is_up = False
        self._steps_s = deque([step_s], maxlen=_RECENT)
        self._checkpoint_s = checkpoint_s

    @property
    def checkpoint_s(self) -> float:
        """Seconds of the last checkpoint; 0 before the first."""
        return self._checkpoint_s

    def note_checkpoint(self, seconds: float) -> None:
        """Count a checkpoint: the next is expected to take as long."""
        self._checkpoint_s = seconds

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
            evaluation_s: what the final evaluation is expected to take.
        """
        if self._limit_s is not None:
            # The longest of some steps: the last one says little of the next.
            step_s = max(self._steps_s)
            owed_s = step_s + evaluation_s + self._checkpoint_s
            most_s = (1 + _OVER) * self._limit_s
            late = self.elapsed_s + owed_s > (self._limit_s if step_s else most_s)
            slower = self.elapsed_s + _SLOWER * owed_s > most_s if step_s else False
            self._is_up = self._is_up or late or slower
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
        if fresh:
            self._steps_s.append(seconds)
        return bag
