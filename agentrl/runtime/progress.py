"""Callbacks of a run for a live view. The base class does nothing; views override methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.health.records import Verdict
    from agentrl.runtime.records import RunResult
    from agentrl.runtime.scores import EvalSummary
    from agentrl.serving.records import EngineStats


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Size and parts of a run that is about to begin."""

    run_dir: Path
    """Directory of the run."""
    steps: int
    """Training steps of the whole run."""
    done: int
    """Steps of earlier processes whose weights were loaded."""
    max_minutes: float | None
    """Time budget of the whole run."""
    model: str
    """Loaded model and its device."""
    sandbox: str
    """Backend and how strong it is."""
    tasks: int
    """Training tasks."""
    rollouts_per_step: int
    """Tasks times samples."""


class Progress:
    """Callbacks of a run, all from the event loop's thread except `trained`."""

    def started(self, plan: RunPlan) -> None:
        """Called when everything is loaded."""

    def phase(self, name: str, total: int = 0) -> None:
        """A stage begins: `rollout`, `train`, `sync`, `eval NAME`, `checkpoint`, `replay`.

        Args:
            name: the stage.
            total: rollouts it will make, 0 where that means nothing.
        """

    def advance(self, rollouts: int, tokens: int) -> None:
        """So many more rollouts of the phase are done; `tokens` were sampled in them."""

    def trained(self, done: int, total: int) -> None:
        """So many micro-batches of the step are done. Called from any thread."""

    def evaluated(self, summary: EvalSummary) -> None:
        """One dataset has been scored."""

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """A training step is complete."""

    def engines(self, stats: Mapping[str, EngineStats]) -> None:
        """Counts of the engines; about once a second."""

    def finished_groups(self, count: int, oldest_s: float) -> None:
        """Groups that have ended and wait to be trained; about once a second.

        Args:
            count: groups that wait.
            oldest_s: seconds that the oldest of them has waited.
        """

    def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """All findings of the detectors, each time they have looked; what changed is noted too."""

    def note(self, text: str) -> None:
        """Something the user should read while the run goes on."""

    def finished(self, result: RunResult) -> None:
        """The run is over."""
