"""A whole step through all of the shaping, in its order."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.schema import RewardSection
from agentrl.errors import DataError
from agentrl.reward import RewardShaper
from agentrl.types import FinishReason, Termination, TrajectoryGroup
from tests.reward.reward_rollouts import group_of, rollout


def shaper(*, budget: int = 10, **section: Any) -> RewardShaper:
    return RewardShaper(RewardSection(**section), max_response_tokens=budget)


def rewards(groups: Any) -> dict[str, float | None]:
    return {row.rollout_id: row.reward for group in groups for row in group.trajectories}


def test_nothing_configured_changes_nothing() -> None:
    group = group_of(rollout("a", 0.1 + 0.2, turn_rewards=(0.1, 0.2)), rollout("b", None))
    shaped = shaper().shape([group])
    assert shaped.groups[0] is group
    assert shaped.skip_groups == {}


def group_with(*values: float) -> TrajectoryGroup:
    return group_of(*(rollout(f"r{i}", value) for i, value in enumerate(values)))


def test_rewards_are_normalised_then_clipped() -> None:
    """Fails with the clip before it: 50, 51, 52 and 500 would all be 10, and then 0.0."""
    rewards_in = [50.0, 51.0, 52.0, 500.0]
    own = shaper(normalize=True, clip=(-10.0, 10.0))
    got = list(rewards(own.shape([group_with(*rewards_in)]).groups).values())
    mean, std = fmean(rewards_in), stdev(rewards_in)
    assert got == pytest.approx([(value - mean) / std for value in rewards_in], rel=1e-12)
    assert len(set(got)) == 4
    # The clip acts on what the normalisation leaves, and the statistics are of what went in.
    own = shaper(normalize=True, clip=(-0.25, 1.0))
    got = list(rewards(own.shape([group_with(*rewards_in)]).groups).values())
    assert got == [-0.25, -0.25, -0.25, 1.0]
    assert own.moments.mean == pytest.approx(mean, rel=1e-15)


def test_a_raw_clip_keeps_one_broken_reward_out_of_the_statistics() -> None:
    own = shaper(normalize=True, clip_raw=(0.0, 60.0), clip=(-1.0, 1.25))
    got = list(rewards(own.shape([group_with(50.0, 51.0, 52.0, 500.0)]).groups).values())
    kept = [50.0, 51.0, 52.0, 60.0]
    assert (own.moments.mean, own.moments.std) == (53.25, pytest.approx(stdev(kept)))
    expected = [(value - fmean(kept)) / stdev(kept) for value in kept]
    assert got == pytest.approx([*expected[:3], 1.25])
    assert expected[3] > 1.25


def test_most_rewards_on_a_bound_are_said_once_a_streak(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = shaper(clip=(-10.0, 10.0))
    with caplog.at_level(logging.WARNING):
        bag = own.shape([group_with(50.0, 51.0, 52.0, 1.0)]).metrics.result()
        own.shape([group_with(50.0, 51.0, 52.0, 500.0)])
    assert bag["reward_shaping/clip/at_bound"] == 0.75
    assert bag["reward_shaping/clip/share"] == 0.75
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "reward.clip [-10.0, 10.0]: 3 of 4 rewards" in caplog.text
    assert "reward.normalize: true" in caplog.text
    with caplog.at_level(logging.WARNING):
        own.shape([group_with(50.0, 51.0, 2.0, 1.0)])  # a half is not most
        own.shape([group_with(-50.0, 51.0, 52.0, 1.0)])
    assert len(caplog.records) == 2
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        shaper(clip_raw=(0.0, 10.0)).shape([group_with(50.0, 51.0, 52.0)])
        # Verdicts of 0 and 1 lie on these bounds by themselves: nothing is lost.
        shaped = shaper(clip=(0.0, 1.0)).shape([group_with(0.0, 1.0, 1.0)])
    assert len(caplog.records) == 1
    assert "reward.clip_raw" in caplog.text
    assert shaped.metrics.result()["reward_shaping/clip/at_bound"] == 1.0


def test_the_order_is_overlong_stop_eos_clip() -> None:
    """By hand: 1 - 1/2 (9 of 10 tokens, buffer 2) = 1/2; truncated: /4 = 1/8; no EOS: - 1/2 = -3/8;
    clipped at -1/4. Any other order gives another number."""
    cut = rollout(
        "a", 1.0, sampled=9, finish=FinishReason.LENGTH, termination=Termination.MAX_TOKENS
    )
    options: dict[str, Any] = {
        "overlong": 2,
        "stop_properly_penalty_coef": 0.25,
        "missing_eos_penalty": 0.5,
    }
    assert rewards(shaper(**options).shape([group_of(cut)]).groups) == {"a": -0.375}
    shaped = shaper(**options, clip=(-0.25, 1.0)).shape([group_of(cut)])
    assert rewards(shaped.groups) == {"a": -0.25}
    bag = shaped.metrics.result()
    assert bag["reward_shaping/overlong/mean"] == -0.5
    assert bag["reward_shaping/stop_properly/mean"] == -0.375
    assert bag["reward_shaping/missing_eos/mean"] == -0.5
    assert bag["reward_shaping/clip/mean"] == 0.125
    assert bag["reward_shaping/clip/share"] == 1.0
    assert bag["reward_shaping/reward"] == -0.25


SAMPLED: dict[str, Any] = {"max_sampled_tokens": 10}


def test_a_length_and_its_budget_are_of_one_unit() -> None:
    """Fails if sampled tokens are held against a budget that tool tokens use up: 0 for a rollout
    of 400 sampled and 600 tool tokens that was cut off at 1000."""
    cut = group_of(
        rollout("a", 1.0, sampled=400, environment=600, termination=Termination.MAX_TOKENS)
    )
    own = shaper(overlong=200, budget=1000)
    assert rewards(own.shape([cut]).groups) == {"a": 0.0}
    sampled = {"buffer_len": 200, "max_sampled_tokens": 500}
    own = shaper(overlong=sampled, budget=1000)
    assert rewards(own.shape([cut]).groups) == {"a": 0.5}  # 100 of the last 200 of 500
    own = shaper(overlong=sampled | {"max_sampled_tokens": 1000}, budget=1000)
    assert rewards(own.shape([cut]).groups) == {"a": 1.0}


def test_lengths_are_of_all_rows() -> None:
    """Fails with one row (4 or 6), or with the other unit (9 or 13 of 10)."""
    rows = [
        rollout("a", 1.0, sampled=5, environment=2),
        rollout("a", 1.0, sampled=4, environment=2, row_index=1),
    ]
    shaped = shaper(overlong=4, budget=15).shape([group_of(*rows)])
    assert [row.reward for row in shaped.groups[0].trajectories] == [0.5, 0.5]
    shaped = shaper(overlong={"buffer_len": 4, **SAMPLED}).shape([group_of(*rows)])
    assert [row.reward for row in shaped.groups[0].trajectories] == [0.25, 0.25]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({**SAMPLED, "buffer_len": 11}, r"buffer_len .11. is larger than max_sampled_tokens .10."),
    ],
)
def test_a_budget_of_another_unit_is_refused(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        shaper(overlong={"buffer_len": 2, **section})


def test_only_truncated_rollouts_must_stop_properly() -> None:
    kinds = {
        Termination.ENV_DONE: 1.0,
        Termination.NO_TOOL_CALL: 1.0,
        Termination.MAX_TURNS: -0.5,
        Termination.MAX_TOKENS: -0.5,
        Termination.CONTEXT_FULL: -0.5,
        Termination.TOOL_TIMEOUT: 1.0,
    }
    rows = [rollout(kind, 1.0, termination=kind) for kind in kinds]
    shaped = shaper(stop_properly_penalty_coef=-0.5).shape([group_of(*rows)])
    assert rewards(shaped.groups) == {str(kind): value for kind, value in kinds.items()}


def test_raising_a_negative_reward_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    cut = [rollout(name, -2.0, termination=Termination.MAX_TOKENS) for name in "ab"]
    own = shaper(stop_properly_penalty_coef=0.0)
    with caplog.at_level(logging.WARNING):
        own.shape([group_of(*cut)])
        own.shape([group_of(*cut)])
        shaper(stop_properly_penalty_coef=-1.0).shape([group_of(*cut)])
    assert len(caplog.records) == 1
    assert "rollout a has the reward -2: multiplying raises it to 0" in caplog.text


def test_normalised_by_all_rewards_so_far() -> None:
    own = shaper(normalize=True)
    first, second = [0.0, 1.0, 5.0], [2.0, 2.0]
    own.shape([group_of(*(rollout(f"a{i}", value) for i, value in enumerate(first)))])
    step = [group_of(*(rollout(f"b{i}", value) for i, value in enumerate(second)))]
    got = rewards(own.shape(step).groups)
    every = first + second
    expected = (2.0 - fmean(every)) / stdev(every)
    assert Fraction(fmean(every)) == 2  # so the shaped rewards are exactly 0
    assert list(got.values()) == pytest.approx([expected] * 2, abs=1e-15)
    step = [group_of(rollout("c", 9.0))]
    every.append(9.0)
    got = rewards(own.shape(step).groups)
    assert got["c"] == pytest.approx((9.0 - fmean(every)) / stdev(every), rel=1e-12)


def test_statistics_are_of_trusted_rewards_after_the_raw_clip() -> None:
    """Fails if `clip`, which acts after them, is in the statistics."""
    own = shaper(clip_raw=(-1.0, 1.0), clip=(-0.5, 0.5))
    own.shape(
        [
            group_of(
                rollout("a", 50.0),
                rollout("b", -1.0),
                rollout("c", None, termination=Termination.ENV_CRASHED),
                # Whatever stands in a rollout that cannot be trusted reaches nothing.
                rollout("d", math.nan, termination=Termination.STALE),
            )
        ]
    )
    assert (own.moments.count, own.moments.mean, own.moments.squares) == (2, 0.0, 2.0)


def test_rows_of_a_rollout_count_once() -> None:
    own = shaper()
    rows = [rollout("a", 1.0, row_index=index) for index in range(3)]
    own.shape([group_of(*rows, rollout("b", 0.0))])
    assert (own.moments.count, own.moments.mean) == (2, 0.5)


@given(st.permutations(range(5)))
def test_the_order_of_rollouts_changes_no_bit(order: list[int]) -> None:
    rows = [rollout(f"r{i}", 0.1 * i**2, sampled=i + 5) for i in range(5)]
    options: dict[str, Any] = {"normalize": True, "overlong": 4}
    plain = rewards(shaper(**options).shape([group_of(*rows)]).groups)
    mixed = rewards(shaper(**options).shape([group_of(*(rows[i] for i in order))]).groups)
    assert plain == mixed


def test_saved_and_loaded_exactly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    step = [group_of(*(rollout(f"a{i}", 0.1 * i) for i in range(3)))]
    one, other = shaper(normalize=True), shaper(normalize=True)
    one.shape(step)
    one.hold()(tmp_path)
    other.load(tmp_path)
    assert one.moments == other.moments
    assert rewards(one.shape(step).groups) == rewards(other.shape(step).groups)
    with caplog.at_level(logging.WARNING):
        other.load(tmp_path / "elsewhere")
    assert "begin anew" in caplog.text


def test_what_multiplies_a_reward_multiplies_those_of_its_turns() -> None:
    """Return-to-go takes earlier turns off the whole reward; fails if they are in other units."""
    row = rollout("a", 3.0, turn_rewards=(1.0, None, 2.0), termination=Termination.MAX_TURNS)
    shaped = shaper(stop_properly_penalty_coef=0.5).shape([group_of(row)]).groups[0].trajectories[0]
    assert [turn.reward for turn in shaped.turns] == [0.5, None, 1.0]
    own = shaper(normalize=True)
    others = [rollout("b", 0.0), rollout("c", 6.0)]
    shaped = own.shape([group_of(row, *others)]).groups[0].trajectories[0]
    assert own.moments.std == 3.0
    assert [turn.reward for turn in shaped.turns] == pytest.approx([1 / 3, None, 2 / 3])
    assert shaped.reward == 0.0
    # `env_weight` was in the reward when it was measured, but not in what `step` returned.
    half = replace(row, reward=1.5, termination=Termination.ENV_DONE)
    shaped = shaper(env_weight=0.5).shape([group_of(half)]).groups[0].trajectories[0]
    assert [turn.reward for turn in shaped.turns] == [0.5, None, 1.0]
    assert shaped.reward == 1.5


def scored(name: str, *scores: float, reward: float = 0.5) -> TrajectoryGroup:
    rows = [
        rollout(f"{name}{i}", reward, score=score, group_id=name) for i, score in enumerate(scores)
    ]
    return group_of(*rows, name=name)


def test_the_filter_looks_at_measured_scores() -> None:
    """Fails if it looks at rewards: all are equal here, and shaping moves them."""
    groups = [scored("easy", 1, 1), scored("hard", 0, 0), scored("mixed", 1, 0)]
    shaped = shaper(dynamic_filtering=(0, 1), missing_eos_penalty=0.25, normalize=True).shape(
        groups
    )
    assert shaped.skip_groups == {"easy": "too_easy", "hard": "too_hard"}
    bag = shaped.metrics.result()
    assert (bag["batch/groups_too_easy"], bag["batch/groups_too_hard"]) == (1, 1)
    assert bag["batch/groups_filtered_share"] == pytest.approx(2 / 3)
    assert len(shaped.groups) == 3


def test_the_filter_takes_the_reward_where_there_is_no_score_and_trusted_rollouts_only() -> None:
    crashed = rollout("x", None, termination=Termination.ENV_CRASHED, group_id="a")
    all_right = group_of(rollout("r", 1.0, group_id="a"), crashed, name="a")
    unknown = group_of(replace(crashed, group_id="b"), name="b")
    shaped = shaper(dynamic_filtering=(0, 1), clip=(0.0, 0.5)).shape([all_right, unknown])
    assert shaped.skip_groups == {"a": "too_easy"}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(DataError, match=r"rollout a of task t: reward is (nan|inf)"):
        shaper().shape([group_of(rollout("a", value))])
    with pytest.raises(DataError, match=r"rollout a of task t: score is (nan|inf)"):
        shaper(dynamic_filtering=(0, 1)).shape([group_of(rollout("a", 1.0, score=value))])


def test_parts_are_metrics_and_a_broken_one_costs_itself() -> None:
    rows = [
        rollout("a", 1.0, reward_parts={"tests": 1.0, "odd": math.nan}),
        rollout("b", 0.0, reward_parts={"tests": 0.0}),
        rollout("c", None, reward_parts={"tests": 9.0}, termination=Termination.ENV_CRASHED),
    ]
    bag = shaper().shape([group_of(*rows)]).metrics.result()
    assert bag["rewards/tests/mean"] == 0.5
    assert "rewards/odd/mean" not in bag


def group_of_version(version: float, *values: float) -> TrajectoryGroup:
    parts = {"rm": 0.0, "rm/rm_version": version}
    return group_of(*(rollout(f"r{i}", v, reward_parts=parts) for i, v in enumerate(values)))


def test_statistics_begin_anew_with_another_version_of_the_reward_model(tmp_path: Path) -> None:
    """Fails if rewards of two versions are normalised together, or if a resume forgets which one
    the statistics are of."""
    own = shaper(normalize=True)
    own.shape([group_of_version(0.0, 50.0, 60.0)])
    own.shape([group_of_version(0.0, 70.0)])
    assert (own.moments.count, own.moments.mean) == (3, 60.0)
    before = own.moments
    got = own.shape_ahead([group_of_version(1.0, 1.0, 2.0, 3.0)])
    assert list(rewards(got.groups).values()) == [-1.0, 0.0, 1.0]
    assert own.moments == before
    own.shape([group_of_version(1.0, 1.0, 2.0, 3.0)])
    assert (own.moments.count, own.moments.mean, own.moments.rm_version) == (3, 2.0, 1)
    own.hold()(tmp_path)
    again = shaper(normalize=True)
    again.load(tmp_path)
    again.shape([group_of_version(1.0, 6.0)])
    assert (again.moments.count, again.moments.mean) == (4, 3.0)
    # Rollouts without a part, as of a run that refreshes nothing, change nothing.
    again.shape([group_with(8.0)])
    assert (again.moments.count, again.moments.rm_version) == (5, 1)
