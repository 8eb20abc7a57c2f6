"""Watching a run in a log: what is worth keeping, and the phase after a silence."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Self

from rich.console import Console

from agentrl.cli.console.facts import step_facts
from agentrl.cli.console.phase import PhaseCounts
from agentrl.cli.console.run_page import RunPage
from agentrl.inspect.read.safe_terminal import visible
from agentrl.runtime.progress import Progress, RunPlan
from agentrl.runtime.scores import EvalSummary, after_step

QUIET_S = 10.0
"""Seconds without a line after which the phase is printed, and after twice as many again."""
_MOST_QUIET_S = 320.0


class QuietLines:
    """Lines of a log, and the phase whenever nothing else was printed for a while."""

    def __init__(self, console: Console, first_phase: str, *, quiet_s: float = QUIET_S) -> None:
        """Print to `console`, and the phase after `quiet_s` seconds without another line."""
        self._console, self._first_s, self._quiet_s = console, quiet_s, quiet_s
        self._phase = PhaseCounts(first_phase)
        self._said = time.monotonic()

    @contextlib.contextmanager
    def open(self) -> Iterator[Self]:
        """Print the phase whenever nothing else was printed for a while."""
        closed = threading.Event()
        thread = threading.Thread(
            target=self._report, args=(closed,), name="quiet-lines", daemon=True
        )
        thread.start()
        try:
            yield self
        finally:
            closed.set()
            thread.join()

    def _report(self, closed: threading.Event) -> None:
        while not closed.wait(max(0.0, self._said + self._quiet_s - time.monotonic())):
            if time.monotonic() >= self._said + self._quiet_s:
                quiet_s = min(2 * self._quiet_s, max(_MOST_QUIET_S, self._first_s))
                self._say(f"  {self._phase.text()}")
                self._quiet_s = quiet_s

    def _say(self, text: str) -> None:
        self._said, self._quiet_s = time.monotonic(), self._first_s
        self._console.print(visible(text), soft_wrap=True)


class PlainView(QuietLines, Progress):
    """One line for everything worth keeping in a log of a CI job."""

    def __init__(
        self, console: Console, page: RunPage | None = None, *, quiet_s: float = QUIET_S
    ) -> None:
        """Print to `console`, and the phase after `quiet_s` seconds without another line.

        Args:
            console: to print to.
            page: where the run is shown in a browser.
            quiet_s: seconds.
        """
        super().__init__(console, "loading model, data and sandbox", quiet_s=quiet_s)
        self._plan: RunPlan | None = None
        self._page = page

    def started(self, plan: RunPlan) -> None:
        """Print where the run writes and what it will do."""
        self._plan = plan
        self._say(f"run {plan.run_dir}")
        self._say(f"model {plan.model}; sandbox {plan.sandbox}")
        text = f"{plan.tasks} tasks"
        if plan.steps:
            text += f", {plan.rollouts_per_step} rollouts a step, {plan.steps} steps"
        self._say(text + (f", {plan.max_minutes:g} minutes at most" if plan.max_minutes else ""))
        if plan.done:
            self._say(f"resumed after step {plan.done}")
        if self._page is not None:
            self._page.open(plan.run_dir, self._say)

    def phase(self, name: str, total: int = 0) -> None:
        """Begin a phase: restart its clock and its counts."""
        self._phase.begin(name, total)

    def advance(self, rollouts: int, tokens: int) -> None:
        """Count rollouts and tokens of the phase."""
        self._phase.advance(rollouts, tokens)

    def trained(self, done: int, total: int) -> None:
        """Note how many micro-batches are trained."""
        self._phase.trained(done, total)

    def evaluated(self, summary: EvalSummary) -> None:
        """Print one line with the score."""
        trains = self._plan is not None and self._plan.steps > 0
        when = f" {after_step(summary.step)}" if trains else ""
        self._say(f"eval {summary.name}{when}: {summary.score.text()}")

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print one line with the step's metrics."""
        total = self._plan.steps if self._plan else 0
        self._say(f"step {step}/{total} " + " ".join(step_facts(metrics)))

    def note(self, text: str) -> None:
        """Print the text on one line."""
        self._say(text)
