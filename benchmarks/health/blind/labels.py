"""What a stream is labelled with, and the register of streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentrl.health import History
from blind.draws import Draw

Make = Callable[[Draw], History]

NAMED_BY: dict[str, frozenset[str]] = {
    "format_hacking": frozenset({"gibberish", "decoupling"}),
}
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
    make: Make
    """Builds it from its random numbers."""

    @property
    def named_by(self) -> frozenset[str]:
        """Detectors of which one must speak."""
        if not self.fault:
            return frozenset()
        return NAMED_BY.get(self.fault, frozenset({self.fault}))


STREAMS: list[Stream] = []


def ill(fault: str, shape: str, source: str, also: str = "") -> Callable[[Make], Make]:
    """Registers a stream that has a fault; `also` names consequences, by spaces."""

    def register(make: Make) -> Make:
        known = frozenset(also.split())
        STREAMS.append(
            Stream(name=f"{fault}: {shape}", fault=fault, also=known, source=source, make=make)
        )
        return make

    return register


def sound(shape: str, source: str) -> Callable[[Make], Make]:
    """Registers a stream that only looks suspicious."""

    def register(make: Make) -> Make:
        STREAMS.append(
            Stream(name=f"sound: {shape}", fault="", also=frozenset(), source=source, make=make)
        )
        return make

    return register
