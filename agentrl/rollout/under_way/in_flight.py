"""Rollouts in flight as somebody who watches the run sees them: which turn, and waiting for what.

A rollout notes each wait in its `Activity`, two assignments and one look at the clock; a
viewer asks for a report, which is all that costs more.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum


class WaitsFor(StrEnum):
    """Party that a rollout in flight waits for."""

    MODEL = "model"
    """A turn of the policy."""
    TOOL = "tool"
    """Its tool calls."""
    SANDBOX = "sandbox"
    """A sandbox that is being opened, the wait for a free one included."""
    ENVIRONMENT = "environment"
    """`reset` or `step`."""
    GRADER = "grader"
    """Its reward."""


class Activity:
    """One rollout, from its beginning over all attempts to its end."""

    def __init__(self, rollout_id: str, task_id: str) -> None:
        """Begin now; it waits for its environment first."""
        self.rollout_id, self.task_id = rollout_id, task_id
        self.session_id = rollout_id
        """Conversation with the engines, of the present attempt."""
        self.turn = 0
        """Assistant turns begun in the present attempt."""
        self.waits_for = WaitsFor.ENVIRONMENT
        """Party it waits for at this moment."""
        self.began = self.since = time.monotonic()

    def attempt(self, session_id: str) -> None:
        """Begin another attempt, with turns from 0."""
        self.session_id, self.turn = session_id, 0
        self.wait(WaitsFor.ENVIRONMENT)

    def wait(self, waits_for: WaitsFor) -> None:
        """Note that it waits for another party from now on."""
        self.waits_for, self.since = waits_for, time.monotonic()

    @contextmanager
    def waiting(self, waits_for: WaitsFor) -> Iterator[None]:
        """Note a wait within another; the outer one goes on afterwards."""
        outer, since = self.waits_for, self.since
        self.wait(waits_for)
        try:
            yield
        finally:
            self.waits_for, self.since = outer, since


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutInFlight:
    """One rollout in flight."""

    rollout_id: str
    """Rollout id, as its rows will have it."""
    task_id: str
    """`Task.id` of its task."""
    turn: int
    """Assistant turns begun; 0 before the first."""
    age_s: float
    """Seconds since it began, all attempts together."""
    waits_for: str
    """A value of `WaitsFor`."""
    waits_s: float
    """Seconds it has waited for that."""
    engine: str
    """Name of the engine that has its conversation; empty if none has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Rollouts that wait for the same party."""

    count: int
    """Rollouts that wait."""
    longest_s: float
    """Seconds that the longest of them has waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightReport:
    """All rollouts in flight in numbers, and the oldest of them one by one."""

    count: int = 0
    """Rollouts in flight."""
    waits: Mapping[str, Waiting] = field(default_factory=dict[str, Waiting])
    """By the value of `WaitsFor`, those that occur."""
    oldest: tuple[RolloutInFlight, ...] = ()
    """The oldest, oldest first."""


LookInFlight = Callable[[int], Awaitable[InFlightReport]]
"""Reports on rollouts in flight, given how many of the oldest to name."""


class InFlight:
    """The rollouts of one worker that are in flight."""

    def __init__(self) -> None:
        self._running: dict[str, Activity] = {}

    def begin(self, rollout_id: str, task_id: str) -> Activity:
        """Add a rollout that begins."""
        self._running[rollout_id] = activity = Activity(rollout_id, task_id)
        return activity

    def hold(self, ended: Iterable[Activity]) -> None:
        """Take rollouts of a group up again that have ended and wait for what grades the group."""
        for activity in ended:
            activity.wait(WaitsFor.GRADER)
            self._running[activity.rollout_id] = activity

    def end(self, rollout_id: str) -> None:
        """Forget a rollout that has ended."""
        self._running.pop(rollout_id, None)

    def report(self, most: int, engine_of: Callable[[str], str | None]) -> InFlightReport:
        """Report on all of them.

        Args:
            most: how many of the oldest to name.
            engine_of: the engine that has a session; None if none has.
        """
        now = time.monotonic()
        running = self._running.values()
        counts: dict[str, int] = {}
        longest: dict[str, float] = {}
        for one in running:
            name, since = one.waits_for, one.since
            counts[name] = counts.get(name, 0) + 1
            if since < longest.get(name, now):
                longest[name] = since
        oldest = heapq.nsmallest(most, running, key=lambda one: one.began)
        return InFlightReport(
            count=len(running),
            waits={
                str(name): Waiting(count=count, longest_s=now - longest.get(name, now))
                for name, count in counts.items()
            },
            oldest=tuple(
                RolloutInFlight(
                    rollout_id=one.rollout_id,
                    task_id=one.task_id,
                    turn=one.turn,
                    age_s=now - one.began,
                    waits_for=str(one.waits_for),
                    waits_s=now - one.since,
                    engine=engine_of(one.session_id) or "",
                )
                for one in oldest
            ),
        )


def merged(reports: Iterable[InFlightReport], most: int) -> InFlightReport:
    """One report of the rollouts of several workers, with the `most` oldest of all."""
    reports = list(reports)
    waits: dict[str, Waiting] = {}
    for report in reports:
        for name, more in report.waits.items():
            known = waits.get(name, Waiting(count=0, longest_s=0.0))
            waits[name] = Waiting(
                count=known.count + more.count, longest_s=max(known.longest_s, more.longest_s)
            )
    oldest = heapq.nlargest(most, (o for r in reports for o in r.oldest), key=lambda o: o.age_s)
    return InFlightReport(
        count=sum(report.count for report in reports), waits=waits, oldest=tuple(oldest)
    )
