"""The simulator: times by hand, nothing lost, and what stickiness and re-pinning are worth."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from agentrl.serving.simulator.policies import RoutingPolicy, policies
from agentrl.serving.simulator.simulate import RoutingReport, ServerModel, percentile, simulate
from agentrl.serving.simulator.workload import (
    LONGEST,
    Lengths,
    Session,
    SimulatedTurn,
    recorded_sessions,
    synthetic_sessions,
)
from agentrl.types import Termination, Trajectory, Turn

ONE = ("server-0",)
TWO = ("server-0", "server-1")
SLOW = ServerModel(
    prefill_tokens_per_s=100, step_s=1.0, sequence_s=0.0, cache_tokens=1000, max_sequences=10
)


def turn(new: int, generated: int, then_s: float = 0.0) -> SimulatedTurn:
    return SimulatedTurn(new_tokens=new, generated_tokens=generated, then_s=then_s)


def model(**values: float) -> ServerModel:
    fields = {name: getattr(SLOW, name) for name in ServerModel.__slots__}
    return ServerModel(**{**fields, **values})


def policy(name: str, engines: Sequence[str] = TWO, **values: float) -> RoutingPolicy:
    settings = {"alpha": 0.002, "max_moves": 2, "seed": 0, **values}
    return policies(engines, **settings)[name]


def serve(
    sessions: Sequence[Session],
    name: str = "sticky",
    *,
    engines: Sequence[str] = ONE,
    on: ServerModel = SLOW,
    **values: float,
) -> RoutingReport:
    return simulate(sessions, policy(name, engines, **values), engines=engines, model=on)


def test_one_turn_by_hand():
    report = serve([(turn(100, 3),)])
    assert report.first_token_p50_s == 1.0  # 100 tokens at 100 a second
    assert report.turn_p50_s == report.makespan_s == 3.0  # and two more steps
    assert (report.prefill_tokens, report.recomputed_tokens) == (100, 0)
    assert (report.cache_hit_rate, report.moves, report.imbalance) == (0.0, 0, 1.0)


def test_the_second_turn_prefills_only_what_is_new():
    report = serve([(turn(100, 1, then_s=2.0), turn(49, 2))])
    # 0-1 prefill, tools until 3, 0.49 s for the new tokens, one step.
    assert report.makespan_s == pytest.approx(4.49)
    assert report.turn_p95_s == pytest.approx(1.49)
    assert report.prefill_tokens == 149
    assert report.cache_hit_rate == pytest.approx(101 / 250)


def test_sequences_that_run_together_share_the_steps():
    """Fails if decoding goes on during a prefill, or if a step costs the same for any batch."""
    work = [(turn(100, 3),), (turn(50, 2),)]
    # A prefills 0-1, B 1-1.5; B ends after one common step, A after two.
    report = serve(work)
    assert (report.turn_p50_s, report.makespan_s) == (2.5, 3.5)
    report = serve(work, on=model(sequence_s=0.5))
    assert (report.turn_p50_s, report.makespan_s) == (3.5, 5.0)


def test_a_prefill_interrupts_decoding_in_the_middle_of_a_step():
    """Fails if the half step is lost, or if what was foreseen before the arrival still happens."""
    a, b = (turn(100, 3),), (turn(100, 1, then_s=0.5), turn(50, 1))
    # A prefills 0-1, B 1-2; A decodes 2-2.5, B's second turn prefills 2.5-3, A has 1.5 steps left.
    report = serve([a, b])
    assert report.makespan_s == 4.5
    assert report.turns == 3


def test_more_sequences_than_fit_wait():
    report = serve([(turn(100, 3),), (turn(100, 3),)], on=model(max_sequences=1))
    assert report.makespan_s == 6.0
    assert report.first_token_p50_s == 1.0
    assert report.turn_p95_s == 6.0


def test_the_session_unused_for_longest_loses_the_end_of_its_prefix():
    work = [(turn(100, 1, then_s=9.0), turn(10, 1)), (turn(100, 1),)]
    report = serve(work, on=model(cache_tokens=150))
    # While B's 101 tokens are there, 49 of A's 101 fit beside them.
    assert report.recomputed_tokens == 52
    assert report.prefill_tokens == 210 + 52
    assert serve(work, on=model(cache_tokens=202)).recomputed_tokens == 0
    assert serve(work, on=model(cache_tokens=0)).recomputed_tokens == 101


def test_running_sequences_push_out_those_that_wait_for_their_tools_the_oldest_first():
    """Fails if room is made only at the end of a turn, or if the newest session goes first."""
    a = (turn(100, 1, then_s=2.0), turn(10, 1))
    assert serve([a, (turn(100, 100),)], on=model(cache_tokens=250)).recomputed_tokens == 51
    a = (turn(100, 1, then_s=9.0), turn(10, 1))
    work = [a, (turn(100, 1),), (turn(100, 1),)]
    assert serve(work, on=model(cache_tokens=250)).recomputed_tokens == 53


def test_the_policy_hears_of_every_end():
    class Listening:
        def __init__(self) -> None:
            self.chosen: list[tuple[str, int]] = []
            self.over: list[str] = []
            self.ended: list[str] = []

        def choose(self, session: str, prefix_tokens: int) -> str:
            self.chosen.append((session, prefix_tokens))
            return TWO[int(session)]

        def done(self, engine: str) -> None:
            self.over.append(engine)

        def end(self, session: str) -> None:
            self.ended.append(session)

    listening = Listening()
    work = [(turn(100, 2, then_s=50.0), turn(5, 1)), (turn(200, 3),)]
    simulate(work, listening, engines=TWO, model=SLOW)
    assert listening.chosen == [("0", 0), ("1", 0), ("0", 102)]
    assert listening.over == ["server-0", "server-1", "server-0"]
    assert listening.ended == ["1", "0"]


@pytest.mark.parametrize("name", ["least-loaded", "sticky", "sticky + re-pin"])
def test_policies_that_count_give_back_what_they_have_counted(name):
    chosen = policy(name)
    for index in range(6):
        assert chosen.choose(f"s{index}", 0) == TWO[index % 2]
    for _ in range(3):
        chosen.done(TWO[1])
    assert [chosen.choose(f"t{index}", 0) for index in range(3)] == [TWO[1]] * 3
    chosen.end("s0")


def test_round_robin_finds_only_what_a_server_has_seen():
    work = [(turn(100, 1), turn(100, 1), turn(100, 1))]
    report = serve(work, "round-robin", engines=TWO)
    # Second turn: nothing of 101. Third turn: 101 of 202, from the first turn.
    assert (report.recomputed_tokens, report.moves) == (202, 2)
    assert serve(work, "sticky", engines=TWO).recomputed_tokens == 0


def test_percentiles_are_values_that_occurred():
    assert percentile([], 0.5) == 0.0
    assert percentile([2.0, 1.0], 0.5) == 1.0
    assert percentile([float(i) for i in range(1, 21)], 0.95) == 19.0
    assert percentile([float(i) for i in range(1, 101)], 0.07) == 7.0


@pytest.mark.parametrize("seed", range(4))
def test_every_turn_is_served_and_every_token_accounted_for(seed):
    """Fails if a request is lost when a server is busy, or if the cache counts tokens twice."""
    rng = random.Random(seed)
    work = synthetic_sessions(40, Lengths(sigma=rng.uniform(0, 2)), seed=seed)
    on = ServerModel(
        prefill_tokens_per_s=rng.choice([500, 20_000]),
        cache_tokens=rng.choice([0, 5_000, 10**9]),
        max_sequences=rng.choice([1, 4, 256]),
    )
    engines = [f"server-{index}" for index in range(rng.randint(1, 4))]
    new = sum(t.new_tokens for session in work for t in session)
    contexts = [
        sum(t.new_tokens + t.generated_tokens for t in session[:index])
        for session in work
        for index in range(len(session))
    ]
    for name in policies(engines, alpha=0.0, max_moves=1, seed=0):
        report = serve(work, name, engines=engines, on=on, alpha=0.0, max_moves=1)
        assert report.turns == sum(len(session) for session in work)
        assert report.prefill_tokens == new + report.recomputed_tokens
        cached = sum(contexts) - report.recomputed_tokens
        assert report.cache_hit_rate == pytest.approx(cached / (sum(contexts) + new))
        longest = max(sum(t.then_s for t in session) for session in work)
        assert report.makespan_s > longest
        assert report.imbalance >= 1.0
        if on.cache_tokens == 0:
            assert report.recomputed_tokens == sum(contexts)
        if name == "sticky":
            assert report.moves == 0
            assert on.cache_tokens < 10**9 or report.recomputed_tokens == 0


def test_sticky_computes_far_less_than_round_robin_and_is_faster():
    work = synthetic_sessions(64, Lengths(), seed=3)
    sticky = serve(work, "sticky", engines=TWO, on=ServerModel())
    for name in ("random", "round-robin", "least-loaded"):
        other = serve(work, name, engines=TWO, on=ServerModel())
        assert other.recomputed_tokens > 100_000
        assert sticky.recomputed_tokens == 0
        assert sticky.first_token_p50_s < other.first_token_p50_s
        assert sticky.makespan_s < other.makespan_s


def test_re_pinning_spreads_a_tail_that_is_all_on_one_server():
    """Every other conversation is long, so all the long ones begin on one server. Fails if
    the policy does not say how long a prefix is, or does not give requests back."""
    long = tuple(turn(50, 100, then_s=0.5) for _ in range(12))
    work = [long if index % 2 == 0 else (turn(50, 10),) for index in range(16)]
    on = model(prefill_tokens_per_s=10_000, step_s=0.001, sequence_s=0.01, cache_tokens=10**6)
    sticky = serve(work, "sticky", engines=TWO, on=on)
    moving = serve(work, "sticky + re-pin", engines=TWO, on=on)
    assert sticky.imbalance > 1.8
    assert moving.imbalance < 1.3
    assert moving.makespan_s < 0.7 * sticky.makespan_s
    assert 0 < moving.moves <= 2 * 8
    heavy = serve(work, "sticky + re-pin", engines=TWO, on=on, alpha=1.0)
    assert heavy.moves == 0


def test_the_same_seed_gives_the_same_numbers_and_another_one_others():
    def reports(seed: int) -> list[RoutingReport]:
        work = synthetic_sessions(30, Lengths(), seed=seed)
        names = policies(TWO, alpha=0.0, max_moves=2, seed=seed)
        return [serve(work, name, engines=TWO, on=ServerModel(), seed=seed) for name in names]

    assert reports(5) == reports(5)
    assert reports(5) != reports(6)


def test_drawn_lengths_have_their_medians_and_bounds():
    lengths = Lengths(turns=4, new_tokens=100, generated_tokens=50, tool_s=1.5, prompt_tokens=700)
    sessions = synthetic_sessions(400, lengths, seed=1)
    assert synthetic_sessions(10, lengths, seed=1) == sessions[:10]
    turns = [t for session in sessions for t in session]
    later = [t for session in sessions for t in session[1:]]
    assert {session[0].new_tokens for session in sessions} == {700}
    assert percentile([len(s) for s in sessions], 0.5) == 4
    assert percentile([t.generated_tokens for t in turns], 0.5) == pytest.approx(50, rel=0.1)
    assert percentile([t.new_tokens for t in later], 0.5) == pytest.approx(100, rel=0.1)
    assert max(t.generated_tokens for t in turns) <= 50 * LONGEST
    assert all(session[-1].then_s == 0.0 for session in sessions)
    # In every process and on every machine: Python seeds by a hash of the text, not by `hash`.
    first = synthetic_sessions(1, Lengths(), seed=1)[0]
    assert [t.new_tokens for t in first] == [800, 299, 126, 293, 64, 155, 85, 338, 142]
    equal = synthetic_sessions(3, Lengths(sigma=0.0, turns=2), seed=9)
    assert equal == [(turn(800, 250, then_s=2.0), turn(200, 250))] * 3


def test_turns_of_stored_trajectories_come_back_with_their_lengths():
    def row(prompt: int, *spans: tuple[str, int, float]) -> Trajectory:
        turns, at = [], 0
        for role, length, seconds in spans:
            turns.append(Turn(role=role, start=at, end=at + length, text="", duration_s=seconds))
            at += length
        return Trajectory(
            task_id="t",
            group_id="g",
            rollout_id="r",
            prompt_ids=(1,) * prompt,
            response_ids=(1,) * at,
            response_mask=(1,) * at,
            rollout_log_probs=(0.0,) * at,
            policy_versions=(0,) * at,
            turns=tuple(turns),
            termination=Termination.ENV_DONE,
        )

    rows = [
        row(
            30,
            ("assistant", 5, 9.0),
            ("tool", 7, 0.5),
            ("user", 2, 0.25),
            ("assistant", 4, 1.0),
            ("assistant", 3, 1.0),
            ("tool", 6, 2.0),
        ),
        row(8, ("assistant", 0, 1.0)),
        row(0),
    ]
    assert recorded_sessions(rows) == [
        (turn(30, 5, then_s=0.75), turn(9, 4), turn(1, 3, then_s=2.0))
    ]
