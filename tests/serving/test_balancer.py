"""The balancer: least in flight, sticky, and counts that always come back to zero."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentrl.errors import EngineError
from agentrl.serving import EngineState, LoadBalancer


def test_first_turns_go_to_the_least_loaded_and_ties_have_an_order():
    balancer = LoadBalancer(["a", "b", "c"])
    assert [balancer.acquire(f"s{i}") for i in range(5)] == ["a", "b", "c", "a", "b"]
    balancer.release("c")
    assert balancer.acquire("s5") == "c"
    for name in "aabbc":
        balancer.release(name)
    # Nothing in flight: the engine with the fewest sessions, not always the first.
    balancer.end_session("s2")
    assert [balancer.acquire("s6"), balancer.acquire("s7")] == ["c", "a"]


def test_later_turns_stay_even_where_it_is_fuller():
    balancer = LoadBalancer(["a", "b"])
    assert balancer.acquire("s") == "a"
    balancer.release("a")
    for index in range(6):
        balancer.acquire(f"other{index}")
    assert balancer.in_flight("a") == balancer.in_flight("b") == 3
    assert [balancer.acquire("s") for _ in range(3)] == ["a"] * 3
    assert balancer.in_flight("a") == 6


@pytest.mark.parametrize("how", ["drain", "quarantine", "remove"])
def test_sessions_move_when_their_engine_leaves_and_then_stay(how):
    balancer = LoadBalancer(["a", "b", "c"])
    assert balancer.acquire("s") == "a"
    getattr(balancer, how)("a")
    assert balancer.acquire("s") == "b"
    if how != "remove":
        balancer.restore("a")
        assert balancer.state("a") is EngineState.ACTIVE
    assert balancer.acquire("s") == "b"
    balancer.release("a")
    assert ("a" in balancer.active()) is (how != "remove")


def test_nobody_left_says_why():
    balancer = LoadBalancer(["a", "b"])
    balancer.drain("a")
    balancer.quarantine("b")
    with pytest.raises(EngineError, match=r"a \(draining\), b \(quarantined\)"):
        balancer.acquire("s")
    with pytest.raises(EngineError, match="there is none"):
        LoadBalancer().acquire("s")


def test_an_engine_that_refused_is_avoided():
    balancer = LoadBalancer(["a", "b"])
    assert balancer.acquire("s") == "a"
    assert balancer.acquire("s", avoid=["a"]) == "b"
    assert balancer.pinned("s") == "b"
    with pytest.raises(EngineError, match="refused by a, b"):
        balancer.acquire("s", avoid=["a", "b"])
    assert (balancer.in_flight("a"), balancer.in_flight("b")) == (1, 1)


def test_the_session_unused_for_longest_is_forgotten_first():
    balancer = LoadBalancer(["a", "b"], max_sessions=2)
    balancer.acquire("old")
    balancer.acquire("kept")
    balancer.acquire("old")
    balancer.acquire("new")
    assert balancer.pinned("kept") is None
    assert balancer.pinned("old") == "a"


def test_release_twice_is_an_error_and_a_removed_engine_keeps_its_count():
    balancer = LoadBalancer(["a"])
    balancer.acquire("s")
    balancer.remove("a")
    with pytest.raises(ValueError, match="unknown engine"):
        balancer.drain("a")
    balancer.add("a")
    assert balancer.in_flight("a") == 1
    balancer.release("a")
    with pytest.raises(ValueError, match="nothing in flight"):
        balancer.release("a")
    with pytest.raises(ValueError, match="already there"):
        balancer.add("a")


class Balancing(RuleBasedStateMachine):
    """Any order of requests, endings, failures and changes of the fleet, against a plain model.

    Fails if `remove` drops the seat of an engine with requests in flight, if `end_session` forgets
    to count the session down, or if a drained engine still gets turns (all three tried).
    """

    def __init__(self) -> None:
        super().__init__()
        self.balancer = LoadBalancer(max_sessions=5)
        self.flying: list[str] = []
        self.homes: dict[str, str] = {}
        self.states: dict[str, EngineState] = {}

    names = st.sampled_from(["a", "b", "c"])
    sessions = st.sampled_from([f"s{i}" for i in range(8)])

    @rule(session=sessions, avoid=st.sets(names, max_size=2))
    def acquire(self, session: str, avoid: set[str]) -> None:
        active = [n for n, s in self.states.items() if s is EngineState.ACTIVE and n not in avoid]
        if not active:
            with pytest.raises(EngineError):
                self.balancer.acquire(session, avoid=avoid)
            return
        pinned = self.balancer.pinned(session)
        load = {n: self.flying.count(n) for n in active}
        name = self.balancer.acquire(session, avoid=avoid)
        self.flying.append(name)
        if pinned in active:
            assert name == pinned
        else:
            assert load[name] == min(load.values())
        assert self.balancer.pinned(session) == name

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.flying))
        self.flying.remove(name)
        self.balancer.release(name)

    @rule(session=sessions)
    def end(self, session: str) -> None:
        self.balancer.end_session(session)
        assert self.balancer.pinned(session) is None

    @rule(name=names)
    def add(self, name: str) -> None:
        if name in self.states:
            with pytest.raises(ValueError, match="already there"):
                self.balancer.add(name)
        else:
            self.balancer.add(name)
            self.states[name] = EngineState.ACTIVE

    @rule(name=names, how=st.sampled_from(["drain", "quarantine", "restore", "remove"]))
    def change(self, name: str, how: str) -> None:
        act = getattr(self.balancer, how)
        if name not in self.states:
            with pytest.raises(ValueError, match="unknown engine"):
                act(name)
            return
        act(name)
        if how == "remove":
            del self.states[name]
        else:
            self.states[name] = {
                "drain": EngineState.DRAINING,
                "quarantine": EngineState.QUARANTINED,
                "restore": EngineState.ACTIVE,
            }[how]

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.balancer) == len(self.states)
        for name, state in self.states.items():
            assert self.balancer.state(name) is state
            assert self.balancer.in_flight(name) == self.flying.count(name)
        pins = [self.balancer.pinned(f"s{i}") for i in range(8)]
        assert sum(pin is not None for pin in pins) <= 5

    def teardown(self) -> None:
        for name in self.flying:
            self.balancer.release(name)
        self.flying.clear()
        self.counts_agree()
        for name in list(self.states):
            self.balancer.remove(name)
        assert all(self.balancer.pinned(f"s{i}") is None for i in range(8))


Balancing.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBalancing = Balancing.TestCase
