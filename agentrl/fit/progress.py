"""Callbacks of a fit, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class PhaseNotes(Protocol):
    """Callbacks that the views of fits and runs have alike."""

    def note(self, text: str) -> None:
        """Something the user should read."""
        ...

    def phase(self, name: str) -> None:
        """A stage begins: `train`, `eval NAME`, `checkpoint`."""
        ...


class FitProgress(PhaseNotes, Protocol):
    """Callbacks of a fit for a view."""

    def step_done(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """A step is complete."""
        ...

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """All data of `eval.datasets` has been measured."""
        ...

    def trained(self, done: int, total: int) -> None:
        """So many micro-batches of the step are done. Called from any thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """Result of a fit that has ended."""

    path: Path
    """Run directory."""
    steps: int
    """Steps done."""
    seconds: float
    """Wall time of this process."""
    before: Mapping[str, float]
    """`eval/...` metrics before the first step of this process."""
    after: Mapping[str, float]
    """`eval/...` metrics after the last."""
    members: tuple[Path, ...] = ()
    """Run directories of the members of an ensemble, of which the numbers above are the last's."""
