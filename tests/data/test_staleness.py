"""The rules that keep tokens young: pure, so they are tried on schedules drawn at random."""

from __future__ import annotations

import heapq
import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config.fleet import ScheduleSection
from agentrl.data.staleness import (
    BackPressure,
    Pace,
    choose_batch,
    drop_stale,
    lag_metrics,
    oldest_allowed,
)
from agentrl.types import Termination, Trajectory, TrajectoryGroup


class Simulation:
    """A run without a clock: groups begin, end in a random order, and are trained."""

    def __init__(
        self,
        pace: Pace,
        *,
        steps: int,
        places: int,
        seed: int,
        tail: float,
        filtered: float = 0.0,
        rounds: int = 0,
    ) -> None:
        self.pace, self.steps, self.places, self.tail = pace, steps, places, tail
        self.filtered, self.rounds = filtered, rounds
        self.missing = pace.prompts_per_step  # of the step at hand
        self.asked = self.replaced = 0
        self.random = random.Random(seed)
        self.pressure = BackPressure(pace.limit, total=steps * pace.prompts_per_step)
        self.engine = self.learner = 0
        self.now = 0.0
        self.running: list[tuple[float, int]] = []  # heap of (end, version at the beginning)
        self.finished: list[int] = []
        self.lags: list[int] = []
        self.begun: dict[int, int] = {}

    def fill(self) -> None:
        while len(self.running) < self.places and self.pressure.allows():
            self.pressure.begin()
            self.begun[self.engine] = self.begun.get(self.engine, 0) + 1
            length = self.random.lognormvariate(0, self.tail)
            heapq.heappush(self.running, (self.now + length, self.engine))

    def end_one(self) -> None:
        assert self.running, f"deadlock at version {self.learner}: {len(self.finished)} finished"
        self.now, began = heapq.heappop(self.running)
        self.finished.append(began)

    def to_replace(self, taken: int) -> int:
        """Groups of those just taken that a filter drops and that others come for."""
        filtered = sum(self.random.random() < self.filtered for _ in range(taken))
        if not filtered or self.asked == self.rounds:
            return 0
        self.asked += 1
        self.replaced += filtered
        return filtered

    def run(self) -> None:
        size = self.pace.prompts_per_step
        while self.learner < self.steps:
            self.fill()
            chosen = choose_batch(
                self.finished,
                [began for _, began in self.running],
                size=self.missing,
                per_step=size,
                version=self.learner,
                lag_bound=self.pace.lag_bound,
            )
            if chosen is None:
                self.end_one()
                continue
            self.lags += [self.learner - self.finished[position] for position in chosen]
            self.finished = [b for i, b in enumerate(self.finished) if i not in set(chosen)]
            self.missing = self.to_replace(len(chosen))
            self.pressure.drop(self.missing)
            if self.missing:
                continue
            self.asked, self.missing = 0, size
            self.learner += 1
            self.pressure.train(size)
            self.now += self.random.random() * size  # others end while the trainer trains
            while self.running and self.running[0][0] <= self.now:
                self.finished.append(heapq.heappop(self.running)[1])
                self.fill()
            if self.learner - self.engine >= self.pace.trigger:
                while self.running and not self.pace.partial:
                    self.end_one()
                self.engine = self.learner
                self.pressure.sync()


schedules = st.builds(
    ScheduleSection,
    trigger_parameter_sync_step=st.integers(1, 4),
    staleness_threshold=st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 3.0]),
    partial_rollout=st.booleans(),
)


@settings(max_examples=100, deadline=None)
@given(
    section=schedules,
    size=st.integers(1, 6),
    places=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    tail=st.sampled_from([0.1, 1.0, 3.0]),
)
def test_no_group_is_trained_beyond_the_bound(
    section: ScheduleSection, size: int, places: int, seed: int, tail: float
) -> None:
    """Fails if what was trained since the last sync is not counted, if the trainer takes whatever
    finished first, or if the rule to wait looks at groups that are due now and not at all later
    ones; and if it waits for something that never comes."""
    pace = Pace.of(section, prompts_per_step=size)
    run = Simulation(pace, steps=25, places=places, seed=seed, tail=tail)
    run.run()
    ahead = (1 + Fraction(str(section.staleness_threshold))) * section.trigger_parameter_sync_step
    assert pace.lag_bound == math.ceil(ahead) - 1
    assert pace.lag_bound is not None
    assert max(run.lags) <= pace.lag_bound
    assert len(run.lags) == sum(run.begun.values()) == 25 * size


@settings(max_examples=100, deadline=None)
@given(
    section=schedules,
    size=st.integers(1, 6),
    places=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    filtered=st.sampled_from([0.1, 0.5, 1.0]),
    rounds=st.integers(1, 4),
)
def test_the_bound_holds_where_filtered_groups_are_replaced(
    section: ScheduleSection, size: int, places: int, seed: int, filtered: float, rounds: int
) -> None:
    """Fails if a replaced group keeps its slot (a deadlock where nothing runs ahead), and if it is
    replaced without a release at the end of the run."""
    pace = Pace.of(section, prompts_per_step=size)
    run = Simulation(
        pace, steps=25, places=places, seed=seed, tail=1.0, filtered=filtered, rounds=rounds
    )
    run.run()
    assert pace.lag_bound is not None
    assert max(run.lags) <= pace.lag_bound
    assert len(run.lags) == sum(run.begun.values()) == 25 * size + run.replaced


@pytest.mark.parametrize("trigger", [1, 3])
@pytest.mark.parametrize("staleness", [0.0, 0.5, 2.0])
def test_the_bound_is_reached(trigger: int, staleness: float) -> None:
    """Fails if the bound is kept by waiting where nobody has to: then it would not be tight."""
    section = ScheduleSection(
        trigger_parameter_sync_step=trigger, staleness_threshold=staleness, partial_rollout=True
    )
    pace = Pace.of(section, prompts_per_step=4)
    run = Simulation(pace, steps=60, places=100, seed=0, tail=1.0)
    run.run()
    assert max(run.lags) == pace.lag_bound


@given(section=schedules, size=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_the_back_pressure_is_the_formula(section: ScheduleSection, size: int, seed: int) -> None:
    """F22: none begins at (1 + staleness) * trigger * prompts_per_step, one does below it."""
    pace = Pace.of(section, prompts_per_step=size)
    pressure, begun = BackPressure(pace.limit), 0
    while pressure.allows():
        pressure.begin()
        begun += 1
    limit = (1 + Fraction(str(section.staleness_threshold))) * pace.trigger * size
    assert begun - 1 < limit <= begun


def test_places_of_trained_groups_are_free_after_the_sync() -> None:
    """Fails if training frees places at once: a sync interval would train old groups for ever."""
    pressure = BackPressure(4)
    for _ in range(4):
        pressure.begin()
    pressure.train(2)
    assert not pressure.allows()
    pressure.sync()
    assert pressure.allows()
    # Two are outstanding, so two more may begin.
    pressure.begin()
    pressure.begin()
    assert not pressure.allows()
    # A dropped group gives its place back at once; a step would wait for ever otherwise.
    pressure.drop()
    assert pressure.allows()


def test_no_group_begins_that_the_run_will_not_train() -> None:
    pressure = BackPressure(100, total=3)
    for _ in range(3):
        pressure.begin()
    assert not pressure.allows()
    pressure.drop()
    assert pressure.allows()


def test_one_step_off_is_a_point_of_the_same_rule() -> None:
    pace = Pace.of(ScheduleSection(staleness_threshold=1.0), prompts_per_step=5)
    assert (pace.limit, pace.lag_bound, pace.trigger) == (10, 1, 1)


def test_a_tenth_is_a_tenth() -> None:
    # Fails in binary arithmetic, where (1 + 0.1) * 10 is above 11.
    section = ScheduleSection(trigger_parameter_sync_step=10, staleness_threshold=0.1)
    assert Pace.of(section, prompts_per_step=1).limit == 11
    assert Pace.of(section, prompts_per_step=1).lag_bound == 10


def test_a_short_group_overtakes_while_there_is_time() -> None:
    # One of version 0 is still running; with L = 2 it may be trained from version 2.
    at = {"size": 1, "lag_bound": 2}
    assert choose_batch([0], [0], version=0, **at) == [0]
    assert choose_batch([1], [0], version=1, **at) == [0]
    assert choose_batch([2], [0], version=2, **at) is None
    # Two are running, and there is one place a step: the second must not be pushed beyond 2.
    assert choose_batch([1], [0, 0], version=1, **at) is None
    # With nothing in flight there is nothing to wait for.
    assert choose_batch([2, 0], [], version=5, **at) == [1]
    assert choose_batch([2], [0], version=2, size=1, lag_bound=None) == [0]
    # One group to complete a step of two: those in flight are trained two a step, in time.
    assert choose_batch([1, 1], [1, 1], version=1, size=1, lag_bound=1) is None
    assert choose_batch([1, 1], [1], version=1, size=1, lag_bound=1, per_step=2) == [0]


def rollout(index: int, versions: tuple[int, ...], ending: Termination) -> Trajectory:
    return Trajectory(
        task_id="t",
        group_id="g",
        rollout_id=f"g/{index}",
        prompt_ids=(1,),
        response_ids=(2,) * len(versions),
        response_mask=tuple(int(version >= 0) for version in versions),
        rollout_log_probs=(-1.0,) * len(versions),
        policy_versions=versions,
        reward=1.0 if ending is Termination.ENV_DONE else None,
        score=1.0 if ending is Termination.ENV_DONE else None,
        termination=ending,
    )


def test_a_rollout_with_one_old_token_is_dropped_and_says_so() -> None:
    group = TrajectoryGroup(
        group_id="g",
        task_id="t",
        trajectories=(
            rollout(0, (3, -1, 5), Termination.ENV_DONE),
            # -1 is a token of the environment and no version: fails if masked ones are looked at.
            rollout(1, (4, -1, 5), Termination.ENV_DONE),
            # What infrastructure ended stays infrastructure in the counts.
            rollout(2, (0, 0), Termination.ENGINE_FAILED),
        ),
    )
    aged = drop_stale(group, oldest_version=4, version=6)
    assert [row.termination for row in aged.trajectories] == [
        Termination.STALE,
        Termination.ENV_DONE,
        Termination.ENGINE_FAILED,
    ]
    old = aged.trajectories[0]
    assert old.reward is None
    assert "version 3, due for 6; ended as env_done" in old.termination_detail
    assert old.response_mask == group.trajectories[0].response_mask
    # A replay reads them from the store and must build the same batch.
    assert drop_stale(aged, oldest_version=4, version=6) == aged


def test_all_rows_of_a_rollout_are_dropped_together() -> None:
    """Fails if rows are judged one by one: the batch refuses rollouts whose rows disagree."""
    from dataclasses import replace

    first = rollout(0, (3,), Termination.ENV_DONE)
    second = replace(rollout(0, (5,), Termination.ENV_DONE), row_index=1)
    group = TrajectoryGroup(group_id="g", task_id="t", trajectories=(first, second))
    aged = drop_stale(group, oldest_version=4, version=6)
    assert {row.termination for row in aged.trajectories} == {Termination.STALE}


def test_lags_count_tokens() -> None:
    values = lag_metrics({7: 90, 6: 6, 2: 4}, version=7).result()
    assert values["staleness/lag_mean"] == pytest.approx((6 + 20) / 100)
    assert values["staleness/lag_p95"] == 1
    assert values["staleness/lag_max"] == 5
    assert values["staleness/share_lag_0"] == 0.9
    assert lag_metrics({}, version=7).result() == {}
    assert oldest_allowed(ScheduleSection(staleness_threshold=1, max_version_lag=2), 7) == 5
    assert oldest_allowed(ScheduleSection(), 7) is None
