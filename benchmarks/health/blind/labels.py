"""The labelled streams of `streams.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentrl.health import History
from blind import edits
from blind.draws import Draw
from blind.formulas import Row, history_of, label, rows

NAMED_BY: dict[str, frozenset[str]] = {"format_hacking": frozenset({"gibberish", "decoupling"})}
"""Detectors of which any names a fault; a fault that is not here has a detector of its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One labelled stream."""

    name: str
    """Fault and shape."""
    fault: str
    """What it was made to be; empty for a sound run."""
    also: frozenset[str]
    """Detectors that may say so too: what they name follows from the fault."""
    source: str
    """The reported run or document whose numbers it takes."""
    row: Row
    """How it is made."""

    @property
    def named_by(self) -> frozenset[str]:
        """Detectors of which one must speak."""
        if not self.fault:
            return frozenset()
        return NAMED_BY.get(self.fault, frozenset({self.fault}))

    def make(self, draw: Draw) -> History:
        """The stream of those random numbers."""
        own = {"n": draw.steps(self.row["steps"])} if "steps" in self.row else {}
        return history_of(self.row, draw, own, edits)


STREAMS = [
    Stream(
        name=label(row),
        fault=row.get("fault", ""),
        also=frozenset(row.get("also", "").split()),
        source=row["source"],
        row=row,
    )
    for row in rows(Path(__file__).with_name("streams.yaml"))
]
