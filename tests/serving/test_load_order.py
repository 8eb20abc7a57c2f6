"""The balancer with its heap against one that looks at every engine for every choice."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from agentrl.errors import EngineError
from agentrl.serving.balancer import LoadBalancer
from agentrl.serving.load_order import LoadOrder
from agentrl.serving.records import EngineState


class _EveryEngine(LoadOrder):
    """Compares all loads at each choice."""

    def first(self, avoid: Collection[str] = ()) -> str | None:
        loads = {name: load for name, load in self._loads.items() if name not in avoid}
        return min(loads, key=lambda name: loads[name], default=None)


class _Linear(LoadBalancer):
    """The rule as the module of the balancer states it, from what it says of itself."""

    def _least_loaded(self, avoid: Collection[str]) -> str:
        names = list(self._seats)
        start = self._offset % len(names) if names else 0
        best: str | None = None
        for name in names[start:] + names[:start]:
            seat = self._seats[name]
            if seat.state is EngineState.ACTIVE and name not in avoid:
                this = (seat.in_flight, seat.sessions)
                if best is None or this < (
                    self._seats[best].in_flight,
                    self._seats[best].sessions,
                ):
                    best = name
        if best is None:
            raise EngineError("no engine takes this request")
        return best


def step(rng: random.Random, balancer: LoadBalancer, in_flight: list[str]) -> str:
    """One random event, the same for the same `rng`; returns what a caller sees of it."""
    names = [f"e{index}" for index in range(9)]
    name, session = rng.choice(names), f"s{rng.randrange(30)}"
    event = rng.choice(["acquire"] * 8 + ["release"] * 6 + ["end", "forget", "add", "remove"]
                       + ["drain", "quarantine", "restore"])  # fmt: skip
    avoid = rng.sample(names, rng.choice([0, 0, 0, 1, 3]))
    prefix, last = rng.choice([0, 0, 50, 500]), rng.random()
    try:
        if event == "acquire":
            in_flight.append(balancer.acquire(session, prefix_tokens=prefix, avoid=avoid))
            return in_flight[-1]
        if event == "release" and in_flight:
            balancer.release(in_flight.pop(int(last * len(in_flight))))
        elif event == "end":
            return str(balancer.end_session(session))
        elif event == "forget":
            balancer.forget_sessions(name)
        elif event in ("add", "remove", "drain", "quarantine", "restore"):
            getattr(balancer, event)(name)
    except (EngineError, ValueError) as error:
        return type(error).__name__
    return event


@pytest.mark.parametrize("seed", range(40))
def test_every_choice_is_that_of_a_balancer_that_looks_at_all_engines(seed: int) -> None:
    # Fails if any change of load, sessions, state or membership does not reach the order.
    offset = seed % 5
    engines = [f"e{index}" for index in range(5)]
    fast = LoadBalancer(engines, offset=offset, max_sessions=20)
    slow = _Linear(engines, offset=offset, max_sessions=20)
    first, second = random.Random(seed), random.Random(seed)
    of_fast: list[str] = []
    of_slow: list[str] = []
    for _ in range(600):
        assert step(first, fast, of_fast) == step(second, slow, of_slow)
    assert of_fast == of_slow


def test_the_heap_keeps_few_entries_however_often_loads_change() -> None:
    order, rng = LoadOrder(), random.Random(0)
    every = _EveryEngine()
    for index in range(20_000):
        name, load = f"e{rng.randrange(16)}", (rng.randrange(9), rng.randrange(9), index)
        order.put(name, load)
        every.put(name, load)
        assert order.first() == every.first()
    assert len(order._heap) <= 8 * 17
