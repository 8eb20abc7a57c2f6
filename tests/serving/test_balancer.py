"""The balancer: least in flight, sticky, and counts that always come back to zero."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentrl.errors import EngineError
from agentrl.serving import EngineState, LoadBalancer, Routed


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
    balancer = LoadBalancer(["a", "b"], max_moves=0)
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


def crowded(balancer: LoadBalancer, *, here: int, there: int) -> None:
    """Session `s` lives on a, with so many requests in flight on each engine."""
    assert balancer.acquire("s") == "a"
    balancer.release("a")
    for index in range(here + there):
        # Drained, so that they go where they should.
        balancer.drain("b" if index < here else "a")
        balancer.acquire(f"other{index}")
        balancer.restore("b" if index < here else "a")
    assert (balancer.in_flight("a"), balancer.in_flight("b")) == (here, there)


@pytest.mark.parametrize(
    ("here", "there", "prefix_tokens", "moves"),
    [
        (1, 0, 0, False),  # the difference of one is a tie: after the turn it would be reversed
        (2, 0, 0, True),
        (5, 4, 0, False),
        (6, 4, 0, True),
        (4, 0, 300, False),  # 4 > 0 + 0.01 * 300 + 1 does not hold
        (5, 0, 300, True),
        (5, 0, 301, True),
        (5, 0, 400, False),
    ],
)
def test_a_session_leaves_where_waiting_costs_more_than_its_prefix(
    here, there, prefix_tokens, moves
):
    """Fails with `>=` for `>`, without the margin, or without `alpha` (all three tried)."""
    balancer = LoadBalancer(["a", "b"], alpha=0.01)
    crowded(balancer, here=here, there=there)
    assert balancer.acquire("s", prefix_tokens=prefix_tokens) == ("b" if moves else "a")
    assert balancer.pinned("s") == ("b" if moves else "a")


def test_a_session_leaves_crowded_engines_only_so_often_and_forced_moves_do_not_count():
    """Fails if a forced move counts, if it resets the count, or if nothing counts (all tried)."""
    balancer = LoadBalancer(["a", "b"], alpha=0.0, max_moves=2)

    def move_from(name: str) -> str:
        other = "b" if name == "a" else "a"
        balancer.drain(other)
        for _ in range(3):
            balancer.acquire("crowd", avoid=[other])
        balancer.restore(other)
        went = balancer.acquire("s")
        for one in (name, name, name, went):
            balancer.release(one)
        return went

    assert balancer.acquire("s") == "a"
    balancer.release("a")
    assert move_from("a") == "b"
    balancer.quarantine("b")
    assert balancer.acquire("s") == "a"
    balancer.restore("b")
    balancer.release("a")
    assert move_from("a") == "b"
    assert move_from("b") == "b"
    assert balancer.routed().crowded == 2


def test_requests_are_counted_by_reason_also_those_of_engines_that_are_gone():
    balancer = LoadBalancer(["a", "b"], alpha=0.0)
    for _ in range(2):
        balancer.acquire("s")
    assert balancer.routed("a") == Routed(first=1, sticky=1)
    balancer.acquire("s")
    assert balancer.routed("b") == Routed(crowded=1)
    balancer.acquire("s", avoid=["b"])
    total = Routed(first=1, sticky=1, crowded=1, forced=1)
    assert balancer.routed() == total
    assert balancer.routed().total == 4
    assert balancer.routed().sticky_share == 1 / 3
    for _ in range(3):
        balancer.release("a")
    balancer.remove("a")
    assert balancer.routed() == total
    assert Routed().sticky_share == 1.0


def test_workers_with_different_offsets_begin_with_different_engines():
    """Fails if the offset is ignored: every worker then begins with the first engine."""
    firsts = [LoadBalancer("abc", offset=worker).acquire("s") for worker in range(6)]
    assert firsts == ["a", "b", "c", "a", "b", "c"]
    assert LoadBalancer("abc", offset=1).acquire("s") == "b"
    balancer = LoadBalancer("abc", offset=2)
    assert [balancer.acquire(f"s{i}") for i in range(4)] == ["c", "a", "b", "c"]


def test_sessions_of_an_engine_without_its_cache_begin_anew():
    """Fails if the count of its sessions stays: the engine then looks fuller than it is."""
    balancer = LoadBalancer(["a", "b"], offset=1)
    assert (balancer.acquire("s"), balancer.acquire("t")) == ("b", "a")
    balancer.release("a")
    balancer.release("b")
    balancer.forget_sessions("a")
    assert (balancer.pinned("s"), balancer.pinned("t")) == ("b", None)
    assert balancer.acquire("u") == "a"
    assert balancer.routed().forced == 0


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match="must not be negative, got -1 and 2"):
        LoadBalancer(alpha=-1)
    with pytest.raises(ValueError, match="must not be negative"):
        LoadBalancer(max_moves=-1)
    with pytest.raises(ValueError, match="max_sessions"):
        LoadBalancer(max_sessions=0)


MOVES = 2
ALPHA = 0.5


class Balancing(RuleBasedStateMachine):
    """Any order of requests, endings, failures and changes of the fleet, against a plain model.

    Fails if `remove` drops the seat of an engine with requests in flight, if `end_session` forgets
    to count the session down, if a drained engine still gets turns, or if a session moves without
    a reason or more often than it may (all tried).
    """

    def __init__(self) -> None:
        super().__init__()
        self.balancer = LoadBalancer(max_sessions=5, alpha=ALPHA, max_moves=MOVES)
        self.moves: dict[str, int] = {}
        self.requests = 0
        self.flying: list[str] = []
        self.homes: dict[str, str] = {}
        self.states: dict[str, EngineState] = {}

    names = st.sampled_from(["a", "b", "c"])
    sessions = st.sampled_from([f"s{i}" for i in range(8)])

    @rule(
        session=sessions,
        avoid=st.just(set()) | st.sets(names, max_size=2),
        prefix_tokens=st.integers(0, 6),
    )
    def acquire(self, session: str, avoid: set[str], prefix_tokens: int) -> None:
        active = [n for n, s in self.states.items() if s is EngineState.ACTIVE and n not in avoid]
        if not active:
            with pytest.raises(EngineError):
                self.balancer.acquire(session, avoid=avoid)
            return
        pinned = self.balancer.pinned(session)
        load = {n: self.flying.count(n) for n in active}
        name = self.balancer.acquire(session, avoid=avoid, prefix_tokens=prefix_tokens)
        self.flying.append(name)
        self.requests += 1
        assert name in active
        if pinned is None:
            self.moves[session] = 0
        if pinned not in active:
            assert load[name] == min(load.values())
        else:
            gain = load[pinned] - min(load.values())
            may_move = gain > ALPHA * prefix_tokens + 1 and self.moves[session] < MOVES
            assert (name != pinned) == may_move
            if may_move:
                assert load[name] == min(load.values())
                self.moves[session] += 1
                assert self.moves[session] <= MOVES
        assert self.balancer.pinned(session) == name
        assert self.balancer.routed().total == self.requests

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
    def forget(self, name: str) -> None:
        if name in self.states:
            self.balancer.forget_sessions(name)
            assert all(self.balancer.pinned(f"s{i}") != name for i in range(8))

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
