"""The state of a run while it runs, in a small file for its viewers.

`RUN/live.json` says what the run does at this moment: its phase, its engines, the rollouts in
flight, the groups that wait to be trained. It is replaced as a whole at most once a second, and a
look that costs c seconds of processor time is followed by none for 100 c, so it never takes more
than a hundredth of a core. It is removed when the run ends. A run that was killed leaves it behind,
so readers ask first whether the run goes on (its lock is held).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.runtime.progress import Progress, RunPlan

if TYPE_CHECKING:
    from agentrl.health.records import Verdict
    from agentrl.rollout.under_way.in_flight import InFlightReport, LookInFlight
    from agentrl.runtime.records import RunResult
    from agentrl.runtime.scores import EvalSummary
    from agentrl.serving.records import EngineStats

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two looks, at least."""
MOST_NAMED = 40
"""Rollouts in flight that are named, the oldest first."""
MOST_ENGINES = 256
"""Engines that are named."""
_REST = 100
"""Times the processor time of a look until the next one."""


class LiveState(Progress):
    """Passes a run's progress on to its view, and keeps the content of the live file."""

    def __init__(self, path: Path, view: Progress, *, slots_per_engine: int) -> None:
        """Write nothing yet.

        Args:
            path: of the live file.
            view: shows the run.
            slots_per_engine: sequences that an engine decodes at once.
        """
        self._path, self._view, self._slots = path, view, slots_per_engine
        self._steps: int | None = None
        self._done, self._step_s = 0, 0.0
        self._engines: Mapping[str, EngineStats] = {}
        self._queue = (0, 0.0)
        self._failed = False
        self._begin("loading")

    @contextmanager
    def open(self) -> Iterator[LiveState]:
        """Write the file now, and remove it in the end."""
        self.write(None)
        try:
            yield self
        finally:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    @asynccontextmanager
    async def watching(self, look: LookInFlight | None) -> AsyncIterator[None]:
        """Look and write once a second; nothing that fails in it ends the run.

        Args:
            look: reports on the rollouts in flight; None where nobody can.
        """
        watcher = asyncio.create_task(self._watch(look))
        try:
            yield
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    def write(self, rollouts: InFlightReport | None) -> None:
        """Replace the file by one of this moment; a reader sees the old one or the new.

        Args:
            rollouts: in flight; None while nobody can say.
        """
        # Not flushed to the disk: after a loss of power nobody wants to see it.
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        try:
            temporary.write_text(json.dumps(self._record(rollouts)), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            if not self._failed:
                logger.warning("%s cannot be written; said once: %s", self._path, error)
            self._failed = True

    async def _watch(self, look: LookInFlight | None) -> None:
        while True:
            spent = 0.0
            try:
                rollouts = await look(MOST_NAMED) if look else None
                # In a thread: the disk may be one that takes its time.
                spent = await asyncio.to_thread(self._measured, rollouts)
            except Exception:  # recording boundary: what is shown must not end a run
                logger.debug("a look at the rollouts in flight failed", exc_info=True)
            await asyncio.sleep(max(LOOK_S, _REST * min(spent, LOOK_S)))

    def _measured(self, rollouts: InFlightReport | None) -> float:
        began = time.thread_time()
        self.write(rollouts)
        return time.thread_time() - began

    def _record(self, rollouts: InFlightReport | None) -> dict[str, Any]:
        count, oldest_s = self._queue
        return {
            "written": time.time(),
            "pid": os.getpid(),
            "steps_done": self._done,
            "steps": self._steps,
            "step_s": self._step_s or None,
            "phase": {
                "name": self._phase,
                "for_s": round(time.monotonic() - self._began, 3),
                "rollouts_done": self._rollouts,
                "rollouts": self._total,
                "tokens": self._tokens,
                "batches_done": self._batches[0],
                "batches": self._batches[1],
            },
            "engines": [self._engine(one) for one in list(self._engines.values())[:MOST_ENGINES]],
            "rollouts": None if rollouts is None else _rollouts(rollouts),
            "finished_groups": {"count": count, "oldest_s": round(oldest_s, 3)},
        }

    def _engine(self, one: EngineStats) -> dict[str, Any]:
        return {
            "name": one.name,
            "state": str(one.state),
            "why": one.why,
            "version": one.version,
            "in_flight": one.in_flight,
            "slots": self._slots,
        }

    def _begin(self, phase: str, total: int = 0) -> None:
        self._phase, self._began, self._total = phase, time.monotonic(), total
        self._rollouts, self._tokens, self._batches = 0, 0, (0, 0)

    def started(self, plan: RunPlan) -> None:
        """Keep the plan and pass it on."""
        self._steps, self._done = plan.steps, plan.done
        self._view.started(plan)

    def phase(self, name: str, total: int = 0) -> None:
        """Keep the phase and pass it on."""
        self._begin(name, total)
        self._view.phase(name, total)

    def advance(self, rollouts: int, tokens: int) -> None:
        """Count rollouts and tokens of the phase."""
        self._rollouts += rollouts
        self._tokens += tokens
        self._view.advance(rollouts, tokens)

    def trained(self, done: int, total: int) -> None:
        """Keep how many micro-batches are trained."""
        self._batches = (done, total)
        self._view.trained(done, total)

    def evaluated(self, summary: EvalSummary) -> None:
        """Pass the score on."""
        self._view.evaluated(summary)

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the number of the step and its time."""
        self._done, self._step_s = step, metrics.get("timing_s/step", 0.0)
        self._view.step_done(step, metrics)

    def engines(self, stats: Mapping[str, EngineStats]) -> None:
        """Keep the counts of the engines."""
        self._engines = stats
        self._view.engines(stats)

    def finished_groups(self, count: int, oldest_s: float) -> None:
        """Keep how many groups wait to be trained."""
        self._queue = (count, oldest_s)
        self._view.finished_groups(count, oldest_s)

    def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Pass the verdicts on."""
        self._view.verdicts(verdicts)

    def note(self, text: str) -> None:
        """Pass the note on."""
        self._view.note(text)

    def finished(self, result: RunResult) -> None:
        """Pass the result on."""
        self._view.finished(result)


def _rollouts(report: InFlightReport) -> dict[str, Any]:
    """The report as JSON, seconds to a millisecond; `asdict` would take three times as long."""
    return {
        "count": report.count,
        "waits": {
            name: {"count": one.count, "longest_s": round(one.longest_s, 3)}
            for name, one in report.waits.items()
        },
        "oldest": [
            {
                "rollout_id": one.rollout_id,
                "task_id": one.task_id,
                "turn": one.turn,
                "age_s": round(one.age_s, 3),
                "waits_for": one.waits_for,
                "waits_s": round(one.waits_s, 3),
                "engine": one.engine,
            }
            for one in report.oldest
        ],
    }
