"""Values of finished rollouts: the formula, the row that is read, and what is refused."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np
import pytest

from agentrl.batch.examples import ScoredTokens
from agentrl.errors import ConfigError, GraderError
from agentrl.fit.reward_models.rollout_rewards import (
    RewardMember,
    RolloutRewards,
    scored_row,
)
from agentrl.reward.scale import RewardScale
from agentrl.train.score_model import ScoreModel
from agentrl.types import RewardValue, Task, Termination, Trajectory
from tests.fit.losses.fit_examples import value_model

TASK = Task(id="t", prompt="p")


class Fixed:
    """The last token of a row times a factor, with a deviation of `factor` if there is one."""

    heads = 1
    vocabulary = 50

    def __init__(self, factor: float, *, outputs: int = 1, batch_tokens: int = 32) -> None:
        self.factor, self.outputs, self.batch_tokens = factor, outputs, batch_tokens
        self.batches: list[int] = []

    def scores(self, rows: Sequence[ScoredTokens]) -> np.ndarray:
        self.batches.append(len(rows))
        last = np.array([float(row.ids[-1]) for row in rows])
        last[last == 13] = math.nan
        both = np.stack([self.factor * last, np.full(len(rows), abs(self.factor))], axis=1)
        return both[:, : self.outputs]


def member(factor: float, *, scale: RewardScale | None = None, **options: int) -> RewardMember:
    return RewardMember(
        path=f"rm{factor:g}", model=Fixed(factor, **options), scales=[scale or RewardScale()]
    )


def rollout(*ids: int, mask: Sequence[int] = (), prompt: Sequence[int] = (1, 2)) -> Trajectory:
    mask = tuple(mask) or (1,) * len(ids)
    return Trajectory(
        task_id="t", group_id="g", rollout_id="r", prompt_ids=tuple(prompt), response_ids=ids,
        response_mask=mask, rollout_log_probs=(0.0,) * len(ids), policy_versions=(0,) * len(ids),
        reward=0.0, termination=Termination.ENV_DONE,
    )  # fmt: skip


async def test_an_ensemble_is_whitened_before_its_mean() -> None:
    """Fails if raw scores are averaged, or if the deviation is not taken off."""
    scales = (RewardScale(temperature=2.0, mean=1.0, std=0.5), RewardScale(mean=-1.0, std=4.0))
    rewards = RolloutRewards(
        [member(1.0, scale=scales[0]), member(10.0, scale=scales[1])], disagreement=0.5
    )
    found = await rewards.value(rollout(5, 6), TASK)
    # Scores 6 and 60: (6 / 2 - 1) / 0.5 = 4 and (60 + 1) / 4 = 15.25.
    between = (15.25 - 4.0) / math.sqrt(2.0)
    assert found.value == pytest.approx((4.0 + 15.25) / 2 - 0.5 * between)
    assert dict(found.parts) == {"std_between": pytest.approx(between)}


class TwoHeads(Fixed):
    """Heads that give the last token of a row, and ten times that."""

    heads = 2

    def scores(self, rows: Sequence[ScoredTokens]) -> np.ndarray:
        return super().scores(rows) * np.array([[1.0, 10.0]])


async def test_heads_are_members_that_share_a_pass() -> None:
    """Fails if heads are not whitened by their own scales, or are no members of a larger list."""
    scales = (RewardScale(temperature=2.0, mean=1.0, std=0.5), RewardScale(mean=-1.0, std=4.0))
    apart = [member(1.0, scale=scales[0]), member(10.0, scale=scales[1])]
    heads = RewardMember(path="rm", model=TwoHeads(1.0), scales=scales)
    for alone, shared in ((apart, [heads]), ([*apart, member(3.0)], [heads, member(3.0)])):
        wanted, found = (RolloutRewards(each, disagreement=0.5) for each in (alone, shared))
        value = await found.value(rollout(5, 6), TASK)
        assert value == await wanted.value(rollout(5, 6), TASK)
        assert value.parts["std_between"] > 1.0
    with pytest.raises(ConfigError, match="one reward model of one head cannot disagree"):
        RolloutRewards([member(1.0)], disagreement=0.5)


async def test_the_deviation_of_a_gaussian_is_taken_off_in_units_of_the_reward() -> None:
    scale = RewardScale(temperature=2.0, mean=1.0, std=0.5)
    rewards = RolloutRewards([member(3.0, scale=scale, outputs=2)], uncertainty=0.25)
    found = await rewards.value(rollout(2), TASK)
    # mu 6 and s 3: (6 / 2 - 1) / 0.5 = 4, and 3 / (2 * 0.5) = 3.
    assert found.value == pytest.approx(4.0 - 0.25 * 3.0)
    assert dict(found.parts) == {"deviation": pytest.approx(3.0)}


async def test_one_model_without_a_deviation_has_no_parts() -> None:
    found = await RolloutRewards([member(3.0)]).value(rollout(2), TASK)
    assert (found.value, dict(found.parts)) == (6.0, {})


async def test_rollouts_that_end_together_are_one_batch() -> None:
    """Fails if each rollout is a pass of its own."""
    first, second = Fixed(1.0), Fixed(2.0)
    rewards = RolloutRewards(
        [RewardMember(path="rm", model=model, scales=[RewardScale()]) for model in (first, second)]
    )
    found = await asyncio.gather(*(rewards.value(rollout(n), TASK) for n in (3, 4, 5)))
    assert [each.value for each in found] == [4.5, 6.0, 7.5]
    assert first.batches == second.batches == [3]
    assert rewards.queue.batches == 1


def test_the_row_ends_with_the_last_sampled_token() -> None:
    """Fails if what tools or the environment add behind the last turn is scored, too."""
    row = scored_row(rollout(7, 8, 9, 4, mask=(1, 0, 1, 0)))
    assert row == ScoredTokens(prompt_ids=(1, 2), ids=(7, 8, 9))


async def test_a_broken_score_costs_its_own_rollout_alone() -> None:
    rewards = RolloutRewards([member(1.0), member(2.0)])
    good, bad = await asyncio.gather(
        rewards.value(rollout(3), TASK), rewards.value(rollout(13), TASK), return_exceptions=True
    )
    assert not isinstance(good, BaseException)
    assert good.value == 4.5
    with pytest.raises(GraderError, match=r"rm1 gives \[nan\], expected finite numbers"):
        raise bad  # pyright: ignore[reportGeneralTypeIssues]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (rollout(*range(31)), "has 33 tokens, but a batch of the reward model holds 31"),
        (rollout(5, 50), "token id 50 is none of the 50 that the reward model reads"),
        (rollout(5, prompt=(99,)), "token id 99 is none of the 50"),
        (rollout(5, mask=(0,)), "no sampled token that a reward model could score"),
    ],
)
async def test_rollouts_that_cannot_be_scored_never_reach_the_others(row, said) -> None:
    rewards = RolloutRewards([member(1.0)])
    with pytest.raises(GraderError, match=said):
        await rewards.value(row, TASK)
    assert rewards.queue.batches == 0


def test_an_uncertainty_needs_models_that_give_one() -> None:
    with pytest.raises(ConfigError, match="the reward model 'rm2' gives no deviation"):
        RolloutRewards([member(1.0, outputs=2), member(2.0)], uncertainty=1.0)


async def test_a_real_model_scores_rollouts_together_as_it_does_alone() -> None:
    model = ScoreModel(value_model(), batch_tokens=64)
    rewards = RolloutRewards([RewardMember(path="rm", model=model, scales=[RewardScale()])])
    rows = [rollout(*range(start, start + 5)) for start in (3, 20, 40)]
    found = await asyncio.gather(*(rewards.value(row, TASK) for row in rows))
    assert rewards.queue.batches == 1
    alone = [model.scores([scored_row(row)])[0, 0] for row in rows]
    assert np.allclose([each.value for each in found], alone, rtol=0, atol=1e-10)


async def test_another_version_pays_from_now_on_and_says_so() -> None:
    rewards = RolloutRewards([member(1.0)], version=0)
    assert await rewards.value(rollout(2), TASK) == RewardValue(value=2.0, parts={"rm_version": 0})
    waiting = asyncio.create_task(rewards.value(rollout(3), TASK))
    await asyncio.sleep(0)
    await rewards.replace([member(2.0, batch_tokens=8)], 1)
    # A rollout that waited was begun before, and is paid by one model or the other, not by both.
    assert (await waiting).value in (3.0, 6.0)
    assert await rewards.value(rollout(2), TASK) == RewardValue(value=4.0, parts={"rm_version": 1})
    with pytest.raises(GraderError, match="a batch of the reward model holds 7"):
        await rewards.value(rollout(*range(20, 28)), TASK)


async def test_a_version_that_does_not_fit_leaves_the_present_one() -> None:
    rewards = RolloutRewards([member(1.0, outputs=2)], uncertainty=1.0, version=0)
    with pytest.raises(ConfigError, match="'rm2' gives no deviation"):
        await rewards.replace([member(2.0)], 1)
    value = await rewards.value(rollout(2), TASK)
    assert (value.value, value.parts["rm_version"]) == (1.0, 0)
