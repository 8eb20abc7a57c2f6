"""Which engine serves a session: pure and synchronous, without network or clock.

The first turn of a session goes to the engine with the fewest requests in flight; among equals, to
the one with the fewest sessions, then to the one added first. Later turns stay there, because that
engine holds the session's prefix in its cache. A session moves only when its engine may not serve
it any more (drained, quarantined, removed), or when it was forgotten: at most `max_sessions` are
remembered, and the one unused for longest goes first.

    ACTIVE --drain--> DRAINING --restore--> ACTIVE          finishes what it has, takes nothing new
    ACTIVE --quarantine--> QUARANTINED --restore--> ACTIVE  as draining, because it failed
    any --remove--> gone once nothing is in flight; added again meanwhile, it is as before
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from agentrl.errors import EngineError, choices


class EngineState(StrEnum):
    """Whether an engine takes requests."""

    ACTIVE = "active"
    """Takes requests."""
    DRAINING = "draining"
    """Finishes what it has."""
    QUARANTINED = "quarantined"
    """Failed; finishes what it has, if it can."""
    REMOVED = "removed"
    """Forgotten as soon as nothing is in flight."""


@dataclass(slots=True)
class _Seat:
    """What is known of one engine."""

    state: EngineState = EngineState.ACTIVE
    in_flight: int = 0
    sessions: int = 0


class LoadBalancer:
    """Least in flight first, then sticky.

    Example:
        >>> balancer = LoadBalancer(["a", "b"])
        >>> balancer.acquire("s1"), balancer.acquire("s2"), balancer.acquire("s3")
        ('a', 'b', 'a')
        >>> balancer.release("a"); balancer.acquire("s1")
        'a'
    """

    def __init__(self, engines: Iterable[str] = (), *, max_sessions: int = 100_000) -> None:
        if max_sessions < 1:
            raise ValueError(f"max_sessions must be at least 1, got {max_sessions}")
        self._max_sessions = max_sessions
        self._seats: dict[str, _Seat] = {}
        self._pins: OrderedDict[str, str] = OrderedDict()
        for name in engines:
            self.add(name)

    # -- requests ---------------------------------------------------------------------------

    def acquire(self, session_id: str, *, avoid: Collection[str] = ()) -> str:
        """Choose the engine of the session's next request and count the request there.

        Args:
            session_id: the same for all turns of a rollout.
            avoid: engines that have just refused this request.

        Returns:
            The name of the engine; give it to `release` when the request is over.

        Raises:
            EngineError: no engine may serve it.
        """
        name = self._pins.get(session_id)
        if name is None or name in avoid or self._seats[name].state is not EngineState.ACTIVE:
            name = self._least_loaded(avoid)
            self._pin(session_id, name)
        else:
            self._pins.move_to_end(session_id)
        self._seats[name].in_flight += 1
        return name

    def release(self, name: str) -> None:
        """The request is over, however it ended. Once for every `acquire`.

        Raises:
            ValueError: nothing of this engine is in flight, so something was released twice.
        """
        seat = self._seats.get(name)
        if seat is None or seat.in_flight == 0:
            raise ValueError(f"release of {name!r}, which has nothing in flight")
        seat.in_flight -= 1
        self._forget_if_gone(name)

    def end_session(self, session_id: str) -> str | None:
        """Forget a session; returns the engine it was pinned to, if any."""
        name = self._pins.pop(session_id, None)
        if name is not None:
            self._seats[name].sessions -= 1
        return name

    # -- engines ----------------------------------------------------------------------------

    def add(self, name: str) -> None:
        """Take a new engine; one that is being removed comes back as it was.

        Raises:
            ValueError: it is there already.
        """
        seat = self._seats.get(name)
        if seat is not None and seat.state is not EngineState.REMOVED:
            raise ValueError(f"engine {name!r} is already there; engine names must be unique")
        if seat is None:
            self._seats[name] = _Seat()
        else:
            seat.state = EngineState.ACTIVE

    def remove(self, name: str) -> None:
        """Take no more requests and forget the engine once nothing is in flight."""
        self._set(name, EngineState.REMOVED)
        self._forget_if_gone(name)

    def drain(self, name: str) -> None:
        """Take no more requests; sessions move with their next turn. `restore` ends it."""
        self._set(name, EngineState.DRAINING)

    def quarantine(self, name: str) -> None:
        """As `drain`, because the engine failed."""
        self._set(name, EngineState.QUARANTINED)

    def restore(self, name: str) -> None:
        """Take requests again."""
        self._seat(name).state = EngineState.ACTIVE

    # -- questions --------------------------------------------------------------------------

    def state(self, name: str) -> EngineState:
        """Whether the engine takes requests."""
        return self._seat(name).state

    def in_flight(self, name: str) -> int:
        """Requests between `acquire` and `release`."""
        return self._seat(name).in_flight

    def pinned(self, session_id: str) -> str | None:
        """The engine of a session that is remembered."""
        return self._pins.get(session_id)

    def active(self) -> list[str]:
        """Engines that take requests, in the order of their addition."""
        return [name for name, seat in self._seats.items() if seat.state is EngineState.ACTIVE]

    def __len__(self) -> int:
        """Engines that are known and not being removed."""
        return sum(seat.state is not EngineState.REMOVED for seat in self._seats.values())

    # -- inside -----------------------------------------------------------------------------

    def _seat(self, name: str) -> _Seat:
        seat = self._seats.get(name)
        if seat is None or seat.state is EngineState.REMOVED:
            known = [n for n, s in self._seats.items() if s.state is not EngineState.REMOVED]
            raise ValueError(f"unknown engine: {choices(name, known)}")
        return seat

    def _set(self, name: str, state: EngineState) -> None:
        self._seat(name).state = state

    def _least_loaded(self, avoid: Collection[str]) -> str:
        best: str | None = None
        load = (0, 0)
        for name, seat in self._seats.items():
            if seat.state is EngineState.ACTIVE and name not in avoid:
                this = (seat.in_flight, seat.sessions)
                if best is None or this < load:
                    best, load = name, this
        if best is None:
            states = ", ".join(f"{n} ({s.state})" for n, s in self._seats.items())
            refused = f"; refused by {', '.join(avoid)}" if avoid else ""
            raise EngineError(f"no engine takes this request: {states or 'there is none'}{refused}")
        return best

    def _pin(self, session_id: str, name: str) -> None:
        self.end_session(session_id)
        self._pins[session_id] = name
        self._seats[name].sessions += 1
        if len(self._pins) > self._max_sessions:
            oldest = next(iter(self._pins))
            self.end_session(oldest)

    def _forget_if_gone(self, name: str) -> None:
        seat = self._seats[name]
        if seat.state is EngineState.REMOVED and seat.in_flight == 0:
            del self._seats[name]
            for session_id in [s for s, n in self._pins.items() if n == name]:
                del self._pins[session_id]
