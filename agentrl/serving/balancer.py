"""Which engine serves a session: pure and synchronous, without network or clock.

The first turn of a session goes to the engine with the fewest requests in flight; among equals, to
the one with the fewest sessions, then to the one that comes first. Later turns stay there, because
that engine holds the session's prefix in its cache. A session moves only

- when its engine is crowded: staying would mean to wait behind more work than prefilling the prefix
  again elsewhere is worth. The score of an engine is its requests in flight plus `alpha` times the
  tokens it would have to prefill again; smaller wins, by more than `MARGIN`. At most `max_moves`
  times a session, so that a fleet that is full everywhere does not play ping-pong;
- when it has to: its engine is drained, quarantined, removed, or has just refused it;
- when it was forgotten: at most `max_sessions` are remembered, and the one unused for longest goes
  first.

    ACTIVE --drain--> DRAINING --restore--> ACTIVE          finishes what it has, takes nothing new
    ACTIVE --quarantine--> QUARANTINED --restore--> ACTIVE  as draining, because it failed
    any --remove--> gone once nothing is in flight; added again meanwhile, it is as before
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from agentrl.errors import EngineError, choices
from agentrl.serving.load_order import LoadOrder
from agentrl.serving.records import EngineState, Routed, total

MARGIN = 1
"""Requests by which another engine must be better. Two engines that differ by the request in
question alone are equal, so a smaller margin would move sessions back and forth between ties."""


@dataclass(slots=True)
class _Seat:
    """What is known of one engine."""

    state: EngineState = EngineState.ACTIVE
    in_flight: int = 0
    sessions: int = 0
    rank: int = 0
    """Position among equals."""
    routed: Routed = field(default_factory=Routed)


@dataclass(slots=True)
class _Pin:
    """What is known of one session."""

    engine: str
    moves: int = 0
    """Times it left a crowded engine."""


class LoadBalancer:
    """Least in flight first, then sticky.

    Example:
        >>> balancer = LoadBalancer(["a", "b"])
        >>> balancer.acquire("s1"), balancer.acquire("s2"), balancer.acquire("s3")
        ('a', 'b', 'a')
        >>> balancer.release("a"); balancer.acquire("s1")
        'a'
    """

    def __init__(
        self,
        engines: Iterable[str] = (),
        *,
        alpha: float = 0.01,
        max_moves: int = 2,
        offset: int = 0,
        max_sessions: int = 100_000,
    ) -> None:
        """Take the engines.

        Args:
            engines: names; more come with `add`.
            alpha: requests in flight that one token to prefill again weighs as much as.
            max_moves: times a session may leave a crowded engine; 0 keeps it for good.
            offset: which engine comes first among equals. Workers that balance the same engines
                independently of one another take different ones, or they would all begin with the
                same engine.
            max_sessions: remembered at once.

        Raises:
            ValueError: a number out of range, or two engines of one name.
        """
        if max_sessions < 1:
            raise ValueError(f"max_sessions must be at least 1, got {max_sessions}")
        if not alpha >= 0 or max_moves < 0:
            raise ValueError(
                f"alpha and max_moves must not be negative, got {alpha} and {max_moves}"
            )
        self.max_sessions = max_sessions
        """Sessions remembered at once."""
        self._alpha = alpha
        self._max_moves = max_moves
        self._offset = offset
        self._seats: dict[str, _Seat] = {}
        self._order = LoadOrder()
        """The seats that take requests."""
        self._pins: OrderedDict[str, _Pin] = OrderedDict()
        self._gone = Routed()
        for name in engines:
            self.add(name)

    # -- requests ---------------------------------------------------------------------------

    def acquire(
        self, session_id: str, *, prefix_tokens: int = 0, avoid: Collection[str] = ()
    ) -> str:
        """Choose the engine of the session's next request and count the request there.

        Args:
            session_id: the same for all turns of a rollout.
            prefix_tokens: what another engine would have to prefill and the session's own would
                not; with 0, moving costs nothing.
            avoid: engines that have just refused this request.

        Returns:
            The name of the engine; give it to `release` when the request is over.

        Raises:
            EngineError: no engine may serve it.
        """
        pin = self._pins.get(session_id)
        if pin is None:
            name = self._least_loaded(avoid)
            self._pin(session_id, _Pin(name))
            self._seats[name].routed.first += 1
        elif pin.engine in avoid or self._seats[pin.engine].state is not EngineState.ACTIVE:
            name = self._least_loaded(avoid)
            self._pin(session_id, _Pin(name, pin.moves))
            self._seats[name].routed.forced += 1
        else:
            name = self._stay_or_leave(pin, prefix_tokens, avoid)
            if name == pin.engine:
                self._pins.move_to_end(session_id)
                self._seats[name].routed.sticky += 1
            else:
                self._pin(session_id, _Pin(name, pin.moves + 1))
                self._seats[name].routed.crowded += 1
        self._seats[name].in_flight += 1
        self._note_load(name)
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
        self._note_load(name)
        self._forget_if_gone(name)

    def end_session(self, session_id: str) -> str | None:
        """Forget a session; returns the engine it was pinned to, if any."""
        pin = self._pins.pop(session_id, None)
        if pin is None:
            return None
        self._seats[pin.engine].sessions -= 1
        self._note_load(pin.engine)
        return pin.engine

    def forget_sessions(self, name: str) -> None:
        """The engine's cache is gone, so nothing binds its sessions to it any more."""
        self._seat(name).sessions = 0
        self._note_load(name)
        self._unpin(name)

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
            self._rank_anew()
        else:
            seat.state = EngineState.ACTIVE
            self._note_load(name)

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
        """Open an engine to requests again."""
        self._set(name, EngineState.ACTIVE)

    # -- questions --------------------------------------------------------------------------

    def state(self, name: str) -> EngineState:
        """State of an engine, such as active or quarantined."""
        return self._seat(name).state

    def in_flight(self, name: str) -> int:
        """Requests between `acquire` and `release`."""
        return self._seat(name).in_flight

    def sessions(self, name: str) -> int:
        """Sessions whose latest request went to this engine and that have not ended."""
        return self._seat(name).sessions

    def pinned(self, session_id: str) -> str | None:
        """The engine of a session that is remembered."""
        pin = self._pins.get(session_id)
        return None if pin is None else pin.engine

    def routed(self, name: str | None = None) -> Routed:
        """Counts of routed requests by engine and reason, of one engine or of all there were."""
        if name is not None:
            return replace(self._seat(name).routed)
        return total(self._gone, *(seat.routed for seat in self._seats.values()))

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
        self._note_load(name)

    def _stay_or_leave(self, pin: _Pin, prefix_tokens: int, avoid: Collection[str]) -> str:
        worth = MARGIN + self._alpha * prefix_tokens
        stay = self._seats[pin.engine].in_flight
        if pin.moves >= self._max_moves or stay <= worth:
            return pin.engine
        best = self._least_loaded(avoid)
        return best if stay > self._seats[best].in_flight + worth else pin.engine

    def _least_loaded(self, avoid: Collection[str]) -> str:
        best = self._order.first(avoid)
        if best is None:
            states = ", ".join(f"{n} ({s.state})" for n, s in self._seats.items())
            refused = f"; refused by {', '.join(avoid)}" if avoid else ""
            raise EngineError(f"no engine takes this request: {states or 'there is none'}{refused}")
        return best

    def _note_load(self, name: str) -> None:
        """Bring the order up to date after a change of one seat."""
        seat = self._seats[name]
        if seat.state is EngineState.ACTIVE:
            self._order.put(name, (seat.in_flight, seat.sessions, seat.rank))
        else:
            self._order.discard(name)

    def _rank_anew(self) -> None:
        """Number the seats, which have become more or fewer, from the one at `offset` on."""
        for index, (name, seat) in enumerate(self._seats.items()):
            seat.rank = (index - self._offset) % len(self._seats)
            self._note_load(name)

    def _pin(self, session_id: str, pin: _Pin) -> None:
        self.end_session(session_id)
        self._pins[session_id] = pin
        self._seats[pin.engine].sessions += 1
        self._note_load(pin.engine)
        if len(self._pins) > self.max_sessions:
            oldest = next(iter(self._pins))
            self.end_session(oldest)

    def _unpin(self, name: str) -> None:
        for session_id in [s for s, pin in self._pins.items() if pin.engine == name]:
            del self._pins[session_id]

    def _forget_if_gone(self, name: str) -> None:
        seat = self._seats[name]
        if seat.state is EngineState.REMOVED and seat.in_flight == 0:
            self._gone = total(self._gone, seat.routed)
            del self._seats[name]
            self._order.discard(name)
            self._rank_anew()
            self._unpin(name)
