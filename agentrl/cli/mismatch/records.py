"""The record of a cause that a gap between sampler and trainer may have."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.health.records import Lever


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A likely cause of a gap, with its evidence."""

    name: str
    """Name, as in `stale_weights`."""
    title: str
    """One line a person reads first."""
    evidence: tuple[str, ...]
    """Numbers, in words."""
    levers: tuple[Lever, ...] = ()
    """Changes of the config that help."""
    advice: str = ""
    """Action that is no config key."""
