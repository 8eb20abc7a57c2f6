"""The detectors after every step, beside the run and never in its way.

    step done -> metrics passed on -> a thread reads the stored rollouts and asks the detectors
                                               |
    log, live view, health.jsonl  <-- what changed

A look that costs c seconds is not followed by another for 100 c: it never takes more than a
hundredth of the run's time, however long its history grows. What it skips the next look sees too.
Whatever goes wrong in here is said once and ends the watching, not the run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.data import TrajectoryStore
from agentrl.health.journal import Event, HealthJournal
from agentrl.health.records import Verdict
from agentrl.health.rollouts import rollouts_of_step, sampled_steps
from agentrl.health.watch import Look, RunWatch
from agentrl.runtime.progress import Progress

if TYPE_CHECKING:
    from agentrl.disk.run_directory import RunDir

logger = logging.getLogger(__name__)

SHARE = 0.01
"""Most of the run's time that looks may take."""
ROLLOUTS = 64
"""About so many of a step are looked at."""


class StepWatch:
    """Runs the detectors on a run from time to time, in a thread."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        run_dir: RunDir,
        *,
        on: bool,
        rollbacks: int,
        logged: Mapping[int, Mapping[str, float]],
        progress: Progress,
    ) -> None:
        """Begin with the metrics that earlier processes of the run have logged.

        Args:
            settings: the config as dotted keys, for the advice.
            run_dir: of the run.
            on: as `HealthSection.watch`; where it is off nothing is looked at.
            rollbacks: how often it was rolled back.
            logged: step to its metrics; NaN where one was not finite.
            progress: notified of findings that changed.
        """
        self._progress, self._rollbacks = progress, rollbacks
        self._path = run_dir.path
        self._on = on
        self._journal = HealthJournal(run_dir.health_file)
        self._pending = [(step, dict(logged[step])) for step in sorted(logged)]
        self._looking: asyncio.Task[None] | None = None
        self._free_at = 0.0
        self._step = -1  # newest step that was looked at
        if self._on:
            events = self._journal.read()
            said = {event.detector: event.status for event in events if event.what == "verdict"}
            self._watch = RunWatch(settings, said=said)
            self._trajectories = run_dir.trajectories
            self._store: TrajectoryStore | None = None

    def add_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Add the metrics of a step, to be looked at later."""
        if self._on and values:
            self._pending.append((step, dict(values)))

    def look_after(self, step: int) -> None:
        """Look at a step that is done, unless that would cost too much."""
        if self._on and self._looking is None and time.monotonic() >= self._free_at:
            self._looking = asyncio.ensure_future(self._look(step))

    async def close(self, step: int, *, look: bool) -> None:
        """Wait for the look that is under way.

        Args:
            step: training steps done.
            look: whether to look once more, where steps were passed over.
        """
        await self._ended()
        if look and self._on and step > self._step:
            self._looking = asyncio.ensure_future(self._look(step))
            await self._ended()

    async def _ended(self) -> None:
        if self._looking is not None:
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self, step: int) -> None:
        began = time.monotonic()
        pending, self._pending = self._pending, []
        try:
            look = await asyncio.to_thread(self._ask, step, pending)
            self._say(step, look)
        except Exception as error:  # recording boundary: what watches a run must not end it
            self._on = False
            logger.exception("the detectors failed at step %d", step)
            self._progress.note(
                f"detectors are off from now on, in this process: {type(error).__name__}: {error}"
            )
        finally:
            self._looking, self._step = None, step
            now = time.monotonic()
            self._free_at = now + (now - began) / SHARE

    def _ask(self, step: int, pending: list[tuple[int, dict[str, float]]]) -> Look:
        """In a thread: the only one that touches the history."""
        for at, values in pending:
            self._watch.see(at, values)
        self._read_rollouts(step)
        return self._watch.look()

    def _read_rollouts(self, until: int) -> None:

        if self._store is None:
            self._store = TrajectoryStore(self._trajectories)
        for kind in self._store.kinds():
            steps = [step for step in self._store.steps(kind) if step <= until]
            for step in sampled_steps(steps):
                if not self._watch.has(kind, step):
                    facts = rollouts_of_step(self._store, kind, step, ROLLOUTS)
                    self._watch.keep(kind, step, facts)

    def _say(self, step: int, look: Look) -> None:
        self._progress.verdicts(look.verdicts)
        for verdict in look.changed:
            text = said(verdict, self._path)
            logger.info("step %d: %s", step, text)
            self._progress.note(f"step {step}: {text}")
            self._journal.write(
                Event(
                    step=step,
                    what="verdict",
                    text=verdict.detail,
                    rollbacks=self._rollbacks,
                    detector=verdict.name,
                    status=verdict.status,
                    first_step=verdict.first_step,
                )
            )


def said(verdict: Verdict, run: Path) -> str:
    """A verdict in one line, with where to read on."""
    text = f"health {verdict.status}: {verdict.detail}"
    if verdict.levers:
        lever = verdict.levers[0]
        text += f"; try {lever.key}={lever.value}"
    return f"{text}; see: agentrl doctor {run}" if verdict.evidence else text
