"""The limit on conversations follows what the engines' caches hold."""

from __future__ import annotations

import pytest

from agentrl.serving.pressure import ConversationLimit
from agentrl.serving.records import BLOCK_TOKENS, Served
from agentrl.serving.simulator.policies import policies
from agentrl.serving.simulator.simulate import RoutingReport, ServerModel, simulate
from agentrl.serving.simulator.workload import Lengths, synthetic_sessions


def limit_of(value: int = 100) -> ConversationLimit:
    return ConversationLimit(value=value, least=10, most=120)


def counts(turns: int, again: float) -> Served:
    """Turns of 1,000 prefix tokens each, of which a share was computed again."""
    return Served(
        later_turns=turns, prefix_tokens=1000 * turns, recomputed_tokens=int(1000 * turns * again)
    )


def test_a_prefix_counts_as_lost_beyond_one_block():
    served = Served()
    served.count_prefix(1000, 1000 - BLOCK_TOKENS)
    assert (served.later_turns, served.prefix_tokens, served.recomputed_tokens) == (1, 1000, 0)
    served.count_prefix(1000, 0)
    assert (served.prefix_tokens, served.recomputed_tokens) == (2000, 1000)


def test_it_shrinks_while_prefixes_are_evicted_and_engines_are_waited_for():
    limit, turns = limit_of(), 0
    seen: list[int] = []
    for _ in range(20):
        turns += limit.value
        limit.observe(
            counts(turns, 0.5),
            running=limit.value,
            step=1,
            live=limit.value,
            asked=limit.value,
            slots=64,
        )
        seen.append(limit.value)
    assert seen[:3] == [80, 64, 51]
    assert seen[-1] == 10


def test_it_shrinks_while_more_run_than_it_allows():
    """An evaluation beside training: two loops, each within the limit."""
    limit = limit_of()
    limit.observe(counts(200, 0.5), running=200, step=1, live=200, asked=200, slots=64)
    assert limit.value == 80


@pytest.mark.parametrize(
    ("again", "asked"),
    [(0.5, 40), (0.05, 40), (0.0, 100)],
    ids=["tools are waited for", "little is evicted", "engines decode all they can"],
)
def test_it_stays_where_another_number_would_not_help(again: float, asked: int):
    limit = limit_of()
    for turns in range(100, 2000, 100):
        limit.observe(counts(turns, again), running=100, step=1, live=100, asked=asked, slots=64)
    assert limit.value == 100


def test_it_grows_slowly_while_caches_hold_and_engines_could_decode_more():
    limit, seen = limit_of(), list[int]()
    for turns in range(100, 1300, 100):
        limit.observe(
            counts(turns, 0.0), running=limit.value, step=1, live=limit.value, asked=20, slots=64
        )
        seen.append(limit.value)
    assert seen[:4] == [100, 100, 100, 112]
    assert seen[-1] == 120


def test_it_does_not_grow_beyond_what_runs():
    """Else a step with few tasks raises it without an observation."""
    limit = limit_of()
    for turns in range(100, 2000, 100):
        limit.observe(counts(turns, 0.0), running=60, step=1, live=60, asked=10, slots=64)
    assert limit.value == 100


def test_counts_that_begin_anew_are_not_taken_for_turns():
    limit = limit_of()
    limit.observe(counts(1000, 0.0), running=100, step=1, live=100, asked=100, slots=64)
    limit.observe(
        counts(10, 1.0), running=100, step=1, live=100, asked=100, slots=64
    )  # an engine was replaced
    limit.observe(counts(20, 1.0), running=100, step=1, live=100, asked=100, slots=64)
    assert limit.value == 100
    limit.observe(counts(100, 1.0), running=100, step=1, live=100, asked=100, slots=64)
    assert limit.value == 80


def serve(limit: ConversationLimit | None, *, tool_s: float, new_tokens: int) -> RoutingReport:
    engines = ["server-0", "server-1"]
    lengths = Lengths(turns=8.0, new_tokens=new_tokens, tool_s=tool_s)
    return simulate(
        synthetic_sessions(500, lengths, seed=1),
        policies(engines, alpha=0.01, max_moves=2, seed=0)["sticky"],
        engines=engines,
        model=ServerModel(cache_tokens=400_000, max_sequences=64),
        limit=limit,
    )


def both(*, tool_s: float, new_tokens: int) -> tuple[RoutingReport, RoutingReport]:
    """With twice the decoding slots for good, and with the limit that begins there."""
    fixed = serve(
        ConversationLimit(value=256, least=256, most=256), tool_s=tool_s, new_tokens=new_tokens
    )
    follows = serve(
        ConversationLimit(value=256, least=16, most=1024), tool_s=tool_s, new_tokens=new_tokens
    )
    return fixed, follows


def test_simulated_servers_with_small_caches_finish_sooner():
    fixed, follows = both(tool_s=2.0, new_tokens=1500)
    assert fixed.turns == follows.turns
    assert follows.recomputed_tokens < 0.8 * fixed.recomputed_tokens
    assert follows.makespan_s < 0.9 * fixed.makespan_s


def test_simulated_servers_that_wait_for_tools_are_not_slowed():
    """Fails if evictions alone shrink the limit: computing again is cheaper than an idle engine."""
    fixed, follows = both(tool_s=20.0, new_tokens=1500)
    assert follows.makespan_s < 1.05 * fixed.makespan_s
