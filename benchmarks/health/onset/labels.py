"""The labelled streams of `streams.yaml`, and when their faults begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from blind.draws import Draw
from blind.formulas import Row, history_of, label, rows

from agentrl.health import History
from onset import edits
from onset.times import Times

Kind = Literal["slow", "sudden", "mixed", "healed", "sound"]
_MOVED = 0.05
"""A fresh set moves its onsets by up to this share of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnsetStream:
    """One labelled stream."""

    name: str
    """Fault and shape."""
    fault: str
    """Detector of the root cause, of two faults the one that began first; empty where sound."""
    also: frozenset[str]
    """Detectors that may speak because what they name follows from the fault."""
    kind: Kind
    """`slow`, `sudden`, `mixed` (two faults), `healed` or `sound`."""
    second: str
    """Detector of the second fault; empty where there is one at most."""
    times: Times
    """Length, onset and end in the set as it was labelled."""
    row: Row
    """How it is made."""

    @property
    def expected(self) -> frozenset[str]:
        """Detectors that may speak of it."""
        return self.also | ({self.fault, self.second} - {""})

    def draw(self, seed: int, *, fresh: bool) -> tuple[Times, History]:
        """The stream of a seed; a fresh one has wider ranges and other onsets."""
        draw = Draw(seed, self.name, fresh=fresh)
        times = self._moved(draw) if fresh else self.times
        own = {"n": times.steps, "onset": times.onset, "second": times.second}
        own |= {name: getattr(times, name) for name in ("since", "on", "ramp", "held", "texts")}
        return times, history_of(self.row, draw, own, edits)

    def _moved(self, draw: Draw) -> Times:
        old = self.times
        if old.onset <= 1 or old.onset > old.steps:
            return old
        last = max(old.onset, old.over or 0, old.second or 0)
        room = min(round(_MOVED * old.steps), (old.steps - last) // 2, old.onset - 2)
        by = int(draw.rng.integers(-room, room + 1))
        return Times(
            steps=old.steps,
            onset=old.onset + by,
            over=None if old.over is None else old.over + by,
            second=None if old.second is None else old.second + by,
        )


def _stream(row: Row, shared: Mapping[str, Row]) -> OnsetStream:
    second: dict[str, Any] = row.get("second", {})
    steps: int = row["steps"]
    return OnsetStream(
        name=label(row),
        fault=row.get("fault", ""),
        also=frozenset(row.get("also", "").split()),
        kind=row.get("kind", "sound"),
        second=second.get("fault", ""),
        times=Times(
            steps=steps,
            onset=row.get("onset", steps + 1),
            over=row.get("over"),
            second=second.get("onset"),
        ),
        row=shared[row["like"]] if "like" in row else row,
    )


_ROWS = rows(Path(__file__).with_name("streams.yaml"))
_BY_NAME = {label(row): row for row in _ROWS}
ONSET_STREAMS = [_stream(row, _BY_NAME) for row in _ROWS]
