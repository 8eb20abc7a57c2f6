"""Which members of a relay made a send fail, from the report and the connection of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Waits = Literal["input", "output", "engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """Answer of a member to the sender's question what it waits for."""

    waits: Waits
    """For bytes from the rank before, for the rank behind, or for its engine to use a bucket."""
    idle_s: float
    """Seconds since it last received or passed on a byte."""


@dataclass(slots=True, kw_only=True)
class RelayEvidence:
    """Facts about the members of one send, by rank."""

    size: int
    """Receivers; their ranks are 1 to `size`."""
    limit_s: float
    """Seconds without a byte that are no failure."""
    done: set[int] = field(default_factory=set)
    """Ranks that have received and passed on everything."""
    gave_up: dict[int, str] = field(default_factory=dict)
    """Ranks that gave up for a reason of their own, with the reason."""
    died: set[int] = field(default_factory=set)
    """Ranks whose connection ended without a word."""
    cut_off: dict[int, str] = field(default_factory=dict)
    """Ranks that gave up because of another member, with the reason."""
    silent: set[int] = field(default_factory=set)
    """Ranks that did not answer a question."""
    reports: dict[int, MemberReport] = field(default_factory=dict)
    """Answers to a question, as long as it matters who makes no progress."""

    @property
    def gone(self) -> set[int]:
        """Ranks that take no more part, or need not."""
        return self.done | self.gave_up.keys() | self.died | self.cut_off.keys()

    @property
    def over(self) -> bool:
        """A member is gone that the send still needs."""
        return bool(self.gone - self.done)

    def idle_s(self) -> float:
        """Seconds since any member of those that answered last moved a byte."""
        return min((report.idle_s for report in self.reports.values()), default=float("inf"))

    def culprits(self) -> list[int]:
        """Ranks to leave out; empty where it is not known.

        A member that stops makes all before it wait for output, unless they are done, and all
        behind it for input. So where all answer, and none waits for its engine, it is the one
        behind the last that waits for output or is done; the connection between the two is broken.
        """
        if found := self.gave_up.keys() | self.died | self.silent:
            return sorted(found)
        if self.cut_off or len(self.reports.keys() | self.done) < self.size or not self.reports:
            return []
        if found := [rank for rank in self.reports if self._engine_is_stuck(rank)]:
            return sorted(found)
        out = [rank for rank, report in self.reports.items() if report.waits == "output"]
        return [min(max([*out, *self.done], default=0) + 1, self.size)]

    def _engine_is_stuck(self, rank: int) -> bool:
        report = self.reports.get(rank)
        return report is not None and report.waits == "engine" and report.idle_s > self.limit_s

    def text(self, rank: int) -> str:
        """Reason why a rank is a culprit."""
        if rank in self.gave_up:
            return f"rank {rank} gave up: {self.gave_up[rank]}"
        if rank in self.died:
            return f"rank {rank} is gone: its connection ended"
        if rank in self.silent:
            return f"rank {rank} does not answer"
        if self._engine_is_stuck(rank):
            idle_s = self.reports[rank].idle_s
            return f"the engine of rank {rank} has not used a bucket for {idle_s:.1f} s"
        before = f"rank {rank - 1}" if rank > 1 else "the sender"
        return f"no bytes pass between {before} and rank {rank}"

    def why(self) -> str:
        """All reasons in one line."""
        if found := self.culprits():
            return "; ".join(self.text(rank) for rank in found)
        return "; ".join(self.cut_off.values()) or "no member made progress"
