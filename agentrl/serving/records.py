"""Records about the engines behind a client: their state, their counts, the reasons."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TypeVar

BLOCK_TOKENS = 128
"""Tokens of the largest cache block in use; engines keep no block that is not full."""


class EngineState(StrEnum):
    """State of an engine, such as active or quarantined."""

    ACTIVE = "active"
    """Takes requests."""
    DRAINING = "draining"
    """Finishes what it has."""
    QUARANTINED = "quarantined"
    """Failed; finishes what it has, if it can."""
    REMOVED = "removed"
    """Forgotten as soon as nothing is in flight."""


@dataclass(slots=True, kw_only=True)
class Routed:
    """Requests by the reason for which they went where they went."""

    first: int = 0
    """Of sessions that were not known."""
    sticky: int = 0
    """Stayed with the engine of the turn before."""
    crowded: int = 0
    """Moved here because their engine had more in flight than their prefix is worth."""
    forced: int = 0
    """Moved here because their engine may not serve them, or has just refused."""

    @property
    def total(self) -> int:
        """All of them; a request that was refused counts again where it goes next."""
        return self.first + self.sticky + self.crowded + self.forced

    @property
    def sticky_share(self) -> float:
        """Share of the later turns that stayed; 1 while there are none."""
        later = self.total - self.first
        return self.sticky / later if later else 1.0


@dataclass(slots=True, kw_only=True)
class Served:
    """Counts of the answers of one engine since it was added."""

    turns: int = 0
    """Generations that came back."""
    prompt_tokens: int = 0
    """Tokens of their prompts."""
    cached_tokens: int = 0
    """Prompt tokens that did not have to be computed again."""
    later_turns: int = 0
    """Generations for conversations whose turn before was here, with the same weights."""
    prefix_tokens: int = 0
    """Tokens of those conversations that had been computed here before."""
    recomputed_tokens: int = 0
    """Of those, the ones that were no longer in the cache."""
    generated_tokens: int = 0
    """Sampled tokens."""
    failures: int = 0
    """Requests that failed after they may have been sampled."""
    refusals: int = 0
    """Requests that were turned away."""

    def count_prefix(self, prefix: int, cached: int) -> None:
        """Count a later turn of a conversation that stayed here.

        Args:
            prefix: tokens of it that were computed here before.
            cached: prompt tokens that were not computed again.
        """
        self.later_turns += 1
        self.prefix_tokens += prefix
        if prefix - cached > BLOCK_TOKENS:
            self.recomputed_tokens += prefix - cached


Counts = TypeVar("Counts", Routed, Served)


def total(first: Counts, *more: Counts) -> Counts:
    """The sums of all fields."""
    parts = (first, *more)
    return type(first)(**{f.name: sum(getattr(p, f.name) for p in parts) for f in fields(first)})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """One engine as the live line shows it. Counts begin with the first request and only grow."""

    name: str
    """Name of the engine."""
    state: EngineState
    """Whether it takes requests."""
    why: str
    """Why it does not, if it is quarantined."""
    version: int
    """The weights it samples from, as far as is known here."""
    in_flight: int
    """Requests that this client awaits."""
    sessions: int = 0
    """Conversations that have asked for a turn here and have not ended or moved since."""
    routed: Routed
    """Requests by the reason for which they came here."""
    served: Served
    """Counts of its answers."""

    @property
    def sticky_share(self) -> float:
        """Share of the later turns that stayed with this engine."""
        return self.routed.sticky_share

    @property
    def cached_share(self) -> float:
        """Share of the prompt tokens that were in the engine's cache; 0 while there are none."""
        return self.served.cached_tokens / max(1, self.served.prompt_tokens)


def added(own: EngineStats, seen: Iterable[EngineStats]) -> EngineStats:
    """The record of an engine with the requests of other clients added.

    Args:
        own: of a client that asks for nothing but control.
        seen: of the clients that ask for turns.
    """
    others = list(seen)
    return replace(
        own,
        in_flight=sum(stats.in_flight for stats in others),
        sessions=sum(stats.sessions for stats in others),
        routed=total(Routed(), *(stats.routed for stats in others)),
        served=total(Served(), *(stats.served for stats in others)),
    )
