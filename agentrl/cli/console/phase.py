"""The phase that a run is in, as both views show it."""

from __future__ import annotations

import time
from collections.abc import Callable

from agentrl.cli.console.report import clock


class PhaseCounts:
    """Name of the phase, its time, and the rollouts and micro-batches done in it."""

    def __init__(self, name: str, *, now: Callable[[], float] = time.monotonic) -> None:
        """Begin a phase.

        Args:
            name: of the phase.
            now: a clock that never goes back, in seconds.
        """
        self._now = now
        self.begin(name)

    def begin(self, name: str, total: int = 0) -> None:
        """Begin another phase, with its clock and counts at zero."""
        self.name, self._began = name, self._now()
        self._total, self._rollouts, self._tokens = total, 0, 0
        self._batches = (0, 0)

    def advance(self, rollouts: int, tokens: int) -> None:
        """Count rollouts that are done, and the tokens sampled in them."""
        self._rollouts += rollouts
        self._tokens += tokens

    def trained(self, done: int, total: int) -> None:
        """Note how many micro-batches are trained."""
        self._batches = (done, total)

    @property
    def seconds(self) -> float:
        """Time in the phase, in seconds."""
        return self._now() - self._began

    def text(self) -> str:
        """As in `rollout, 0:12, rollouts 24 of 64, 210 tokens/s`."""
        text = f"{self.name}, {clock(self.seconds)}"
        if self._total:
            text += f", rollouts {self._rollouts} of {self._total}"
            if self._tokens and self.seconds > 1:
                text += f", {self._tokens / self.seconds:.0f} tokens/s"
        if self._batches[1]:
            text += f", micro-batch {self._batches[0]} of {self._batches[1]}"
        return text
