"""Ways to choose an engine, to be compared by the simulator.

The sticky ones are the balancer that serves real runs, not a model of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Protocol

from agentrl.serving.balancer import LoadBalancer


class RoutingPolicy(Protocol):
    """Chooses engines; notified of every request's end."""

    def choose(self, session: str, prefix_tokens: int) -> str:
        """The engine of the session's next request."""
        ...

    def done(self, engine: str) -> None:
        """A request is over."""
        ...

    def end(self, session: str) -> None:
        """No more requests of this session."""
        ...


class Stateless:
    """Chooses without looking at what is in flight."""

    def __init__(self, draw: Callable[[], str]) -> None:
        self._draw = draw

    def choose(self, session: str, prefix_tokens: int) -> str:
        """Draw an engine without looking at any load."""
        return self._draw()

    def done(self, engine: str) -> None:
        """Ignore the end of a request."""

    def end(self, session: str) -> None:
        """Ignore the end of a session."""


class LeastLoaded:
    """The engine with the fewest requests in flight, every turn; the first among equals."""

    def __init__(self, engines: Sequence[str]) -> None:
        self._in_flight = dict.fromkeys(engines, 0)

    def choose(self, session: str, prefix_tokens: int) -> str:
        """Choose the engine with the fewest requests and count one more there."""
        name = min(self._in_flight, key=lambda engine: self._in_flight[engine])
        self._in_flight[name] += 1
        return name

    def done(self, engine: str) -> None:
        """Count one request less there."""
        self._in_flight[engine] -= 1

    def end(self, session: str) -> None:
        """Ignore the end of a session."""


class Balanced:
    """The policy of `TokenClient`: the load balancer itself."""

    def __init__(self, balancer: LoadBalancer) -> None:
        self._balancer = balancer

    def choose(self, session: str, prefix_tokens: int) -> str:
        """Ask the balancer for an engine."""
        return self._balancer.acquire(session, prefix_tokens=prefix_tokens)

    def done(self, engine: str) -> None:
        """Release the request at the balancer."""
        self._balancer.release(engine)

    def end(self, session: str) -> None:
        """Forget the session at the balancer."""
        self._balancer.end_session(session)


def policies(
    engines: Sequence[str], *, alpha: float, max_moves: int, seed: int
) -> Mapping[str, RoutingPolicy]:
    """One fresh policy of every kind, by the name it is shown under.

    Args:
        engines: to choose from.
        alpha: as `LoadBalancer`.
        max_moves: as `LoadBalancer`.
        seed: of the random one.
    """
    rng, turn = random.Random(seed), cycle(engines)
    return {
        "random": Stateless(lambda: rng.choice(engines)),
        "round-robin": Stateless(lambda: next(turn)),
        "least-loaded": LeastLoaded(engines),
        "sticky": Balanced(LoadBalancer(engines, max_moves=0)),
        "sticky + re-pin": Balanced(LoadBalancer(engines, alpha=alpha, max_moves=max_moves)),
    }
