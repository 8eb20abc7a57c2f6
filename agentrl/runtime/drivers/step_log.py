"""The lines of `metrics.jsonl`, and the listeners that are shown them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from agentrl.errors import Outage
from agentrl.machine.processes.stop import Interrupted
from agentrl.runtime.health.run_health import RunHealth
from agentrl.runtime.progress import Progress

if TYPE_CHECKING:
    from agentrl.metrics.sinks import MetricsLog


class StepLog:
    """Writes a line a step, and further ones for what ends after it.

    A replayed step that was logged before a kill keeps its line.
    """

    def __init__(
        self,
        metrics: MetricsLog,
        *,
        logged: Mapping[int, Mapping[str, float]],
        health: RunHealth,
        progress: Progress,
    ) -> None:
        """Go on after the lines of earlier processes.

        Args:
            metrics: where lines go.
            logged: step to its line of earlier processes.
            health: shown all metrics.
            progress: shown the metrics of steps.
        """
        self._metrics, self._health, self._progress = metrics, health, progress
        self._steps = {step for step, line in logged.items() if "timing_s/step" in line}
        self._last = dict(logged.get(self.last_step, {}))

    @property
    def last_step(self) -> int:
        """The latest step that has a line; 0 before the first."""
        return max(self._steps, default=0)

    @property
    def last_values(self) -> Mapping[str, float]:
        """The metrics of that line."""
        return self._last

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Show the metrics of a trained step to rules, detectors and the live view."""
        self._health.add_metrics(step, values)
        self._progress.step_done(step, values)

    @contextlib.contextmanager
    def step_line(self, step: int, values: Mapping[str, float]) -> Iterator[dict[str, float]]:
        """Write the line of a trained step when the block ends, with the scores put into the dict.

        A signal that interrupts the evaluation, or an outage, leaves the line without scores: the
        step itself is complete. Any other error leaves no line.
        """
        scores: dict[str, float] = {}
        try:
            yield scores
        except (Interrupted, Outage):
            self._write_step(step, values, {})
            raise
        self._write_step(step, values, scores)

    def write_scores(self, step: int, scores: Mapping[str, float]) -> None:
        """Write an evaluation that belongs to no trained step of this process."""
        self._health.add_metrics(step, scores)
        if scores:
            self._metrics.log(step, dict(scores))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add numbers to the line of a step that others may have followed."""
        self._metrics.log(step, dict(values))

    def write_last(self, values: Mapping[str, float]) -> None:
        """Replace values in the line of the latest step."""
        if values:
            self._metrics.log(self.last_step, dict(values))

    def _write_step(
        self, step: int, values: Mapping[str, float], scores: Mapping[str, float]
    ) -> None:
        line = dict(scores)
        if step not in self._steps:
            self._steps.add(step)
            line = self._last = {**values, **scores}
        self._health.add_metrics(step, scores)
        if line:
            self._metrics.log(step, line)
