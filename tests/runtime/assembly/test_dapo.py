"""`algorithm.preset: dapo` is the algorithm of its paper, in numbers (FORMULAS F4, F13, F23)."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest

from agentrl.config.algorithm import AlgorithmSection
from agentrl.config.presets import PRESETS
from agentrl.runtime.assembly.step_batch import StepMaker
from agentrl.types import Termination, Trajectory, TrajectoryGroup
from tests.runtime.assembly.test_step_batch import schedule
from tests.train.losses.loss_parts import evaluate

DAPO = {"preset": "dapo"}
SHORT = {"max_response_tokens": 10, "max_turn_tokens": 10}


def group(name: str, *rollouts: tuple[float, int]) -> TrajectoryGroup:
    """Rollouts by reward and number of response tokens."""
    rows = tuple(
        Trajectory(
            task_id=name,
            group_id=name,
            rollout_id=f"{name}/{index}",
            prompt_ids=(1, 2),
            response_ids=tuple(range(3, 3 + length)),
            response_mask=(1,) * length,
            rollout_log_probs=(-1.0,) * length,
            policy_versions=(0,) * length,
            reward=reward,
            termination=Termination.ENV_DONE,
        )
        for index, (reward, length) in enumerate(rollouts)
    )
    return TrajectoryGroup(group_id=name, task_id=name, trajectories=rows)


def test_rewards_groups_and_denominators() -> None:
    """Of 10 tokens the last 2 are penalised: 9 cost a half, 10 cost 1 (equation 13).

    Fails if the penalty decides about a group (`right` has unequal rewards with it), if a filtered
    group is in the denominator, or if the penalty comes after the group's baseline.
    """
    groups = [
        group("mixed", (1.0, 3), (1.0, 9), (0.0, 10), (0.0, 8)),
        group("right", (1.0, 3), (1.0, 10)),
        group("wrong", (0.0, 3), (0.0, 9)),
    ]
    made = StepMaker(schedule(algorithm=DAPO, rollout=SHORT)).prepare(1, groups)
    shaped = [1.0, 0.5, -1.0, 0.0]
    expected = [(reward - fmean(shaped)) / (stdev(shaped) + 1e-6) for reward in shaped]
    found = [made.batch.advantages[f"mixed/{index}"] for index in range(4)]
    assert found == pytest.approx(expected, rel=1e-6)
    assert len(made.batch.advantages) == 4
    (update,) = made.batch.updates
    assert (update.global_tokens, update.global_sequences) == (30, 4)
    values = made.metrics.result()
    assert (values["batch/groups_too_easy"], values["batch/groups_too_hard"]) == (1, 1)


def test_clip_higher_and_no_penalty() -> None:
    """Bounds 0.8 and 1.28 (equation 10), no dual clip, no KL and no reference.

    At 1.25 a token of a good rollout still moves, which it does not with the 1.2 of `grpo`.
    """
    section = AlgorithmSection(preset="dapo", old_log_probs="recompute").resolved(horizon=8)
    assert (section.loss_agg_mode, section.needs_reference) == ("token-mean", False)
    assert (section.dual_clip, section.whiten_advantages) == (None, False)
    ratios, advantages = [1.25, 1.3, 0.75, 1.3, 0.75], [1.0, 1.0, -1.0, -1.0, 1.0]
    old = [-2.0] * 5
    now = [-2.0 + math.log(ratio) for ratio in ratios]
    got = evaluate(section, now=now, old=old, advantages=advantages, weights=[1.0] * 5)
    assert got.loss == pytest.approx(-1.25 - 1.28 + 0.8 + 1.3 - 0.75)
    assert got.slopes == pytest.approx([-1.25, 0.0, 0.0, 1.3, -0.75])
    grpo = AlgorithmSection(preset="grpo", old_log_probs="recompute").resolved(horizon=8)
    got = evaluate(grpo, now=now, old=old, advantages=advantages, weights=[1.0] * 5)
    assert got.slopes == pytest.approx([0.0, 0.0, 0.0, 1.3, -0.75])


def test_what_is_set_beside_it_wins() -> None:
    plain = schedule(algorithm=DAPO).reward
    assert plain.dynamic_filtering is not None
    assert plain.overlong is not None
    assert (plain.dynamic_filtering.keep, plain.dynamic_filtering.rounds) == ((0.0, 1.0), 10)
    assert (plain.overlong.buffer_len, plain.overlong.penalty_factor) == (2048 // 5, 1.0)
    off = schedule(algorithm=DAPO, reward={"dynamic_filtering": None, "overlong": None}).reward
    assert (off.dynamic_filtering, off.overlong) == (None, None)
    own = {"dynamic_filtering": [0.1, 0.9], "overlong": {"max_sampled_tokens": 100}}
    some = schedule(algorithm=DAPO, reward=own).reward
    assert some.dynamic_filtering is not None
    assert some.overlong is not None
    assert (some.dynamic_filtering.keep, some.dynamic_filtering.rounds) == ((0.1, 0.9), 10)
    # A fifth of the budget that is counted.
    assert (some.overlong.buffer_len, some.overlong.max_sampled_tokens) == (20, 100)


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "dapo"])
def test_no_other_preset_touches_the_rewards(preset: str) -> None:
    reward = schedule(algorithm={"preset": preset}).reward
    assert (reward.dynamic_filtering, reward.overlong) == (None, None)
