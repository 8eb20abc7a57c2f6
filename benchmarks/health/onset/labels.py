"""Labels of a stream, and the register of streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from blind.draws import Draw

from agentrl.health import History
from onset.times import Times

Make = Callable[[Draw, Times], History]
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
    make: Make
    """Builds it from its random numbers and times."""

    @property
    def expected(self) -> frozenset[str]:
        """Detectors that may speak of it."""
        return self.also | ({self.fault, self.second} - {""})

    def draw(self, seed: int, *, fresh: bool) -> tuple[Times, History]:
        """The stream of a seed; a fresh one has wider ranges and other onsets."""
        draw = Draw(seed, self.name, fresh=fresh)
        times = self._moved(draw) if fresh else self.times
        return times, self.make(draw, times)

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


ONSET_STREAMS: list[OnsetStream] = []


def ill(
    fault: str,
    shape: str,
    kind: Kind,
    *,
    steps: int,
    onset: int,
    over: int | None = None,
    also: str = "",
    second: tuple[str, int] | None = None,
) -> Callable[[Make], Make]:
    """Registers a stream that has a fault.

    Args:
        fault: detector of the root cause.
        shape: what it looks like; with `fault` the name of the stream.
        kind: how it comes.
        steps: length of the run.
        onset: first step it touches.
        over: first step after it healed.
        also: detectors of consequences, by spaces.
        second: detector and onset of another fault.
    """

    def register(make: Make) -> Make:
        ONSET_STREAMS.append(
            OnsetStream(
                name=f"{fault}: {shape}",
                fault=fault,
                also=frozenset(also.split()),
                kind=kind,
                second=second[0] if second else "",
                times=Times(
                    steps=steps, onset=onset, over=over, second=second[1] if second else None
                ),
                make=make,
            )
        )
        return make

    return register


def sound(shape: str, *, steps: int, at: int | None = None) -> Callable[[Make], Make]:
    """Registers a sound run; `at` is the step of an event that does no harm."""

    def register(make: Make) -> Make:
        ONSET_STREAMS.append(
            OnsetStream(
                name=f"sound: {shape}",
                fault="",
                also=frozenset(),
                kind="sound",
                second="",
                times=Times(steps=steps, onset=steps + 1 if at is None else at),
                make=make,
            )
        )
        return make

    return register
