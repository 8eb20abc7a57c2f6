"""Verdicts that stay while what they are about stays, and shares that read as shares."""

from __future__ import annotations

import random

import pytest

from agentrl.health import DASHBOARD, FIT_DASHBOARD, History, Verdict, diagnose, limits
from agentrl.health.measures.curves import difference, percent
from agentrl.metrics.intervals import score_interval
from agentrl.types.finding import Status
from tests.health.detectors.test_shapes import curve


def said(name: str, **metrics: list[float]) -> Verdict:
    history = History(metrics={key.replace("__", "/"): curve(of) for key, of in metrics.items()})
    return next(verdict for verdict in diagnose(history) if verdict.name == name)


@pytest.mark.parametrize("last", [0.5, 1.0])
def test_one_step_with_fewer_cuts_is_no_cure(last: float) -> None:
    """Fails if a run is healthy at the very step at which 92 % of the last ten were cut off."""
    found = said("truncation", completions__clipped_ratio=[1.0] * 40 + [0.7, *[1.0] * 8, last])
    assert found.status is Status.FAIL, found.detail
    assert " % of the rollouts are cut off" in found.detail


def test_a_fall_is_not_taken_back_by_one_good_step() -> None:
    """Fails if the reward fell, and two steps later it did not."""
    low = [0.8, 0.7, 0.9] * 10 + [0.5, 0.4, 0.5, 0.6, 0.4]
    for more in ([], [0.9], [0.9, 0.55]):
        assert said("reward_fall", reward=low + more).status is not Status.OK, more
    assert said("reward_fall", reward=[*low, 0.8, 0.9, 0.8, 0.7, 0.9]).status is Status.OK


@pytest.mark.parametrize("level", [-0.01, 0.05, 0.1, 0.5])
def test_a_reward_that_never_moved_has_not_fallen(level: float) -> None:
    """Fails if the luckiest of many windows is the level that an unlucky end is held against."""
    draw = random.Random(0)
    found = [
        said("reward_fall", reward=[draw.gauss(level, 0.05) for _ in range(80)]) for _ in range(40)
    ]
    assert sum(one.status is not Status.OK for one in found) <= 2
    fell = [draw.gauss(0.5 if step < 50 else 0.3, 0.08) for step in range(80)]
    assert said("reward_fall", reward=fell).status is not Status.OK


@pytest.mark.parametrize(
    "metric", ["rollout_corr__ratio_min", "sampling__importance_sampling_ratio__min"]
)
def test_single_tokens_that_are_far_apart_are_named(metric: str) -> None:
    """Fails if the band of a curve is red for 60 steps and no detector speaks."""
    gap = {"sampling__sampling_logp_difference__mean": [0.01] * 60}
    found = said("sampler_learner_gap", **gap, **{metric: [1e-5] * 60})
    assert found.status is Status.WARN
    assert "1e-05" in found.detail
    assert found.levers
    assert said("sampler_learner_gap", **gap, **{metric: [0.3] * 60}).status is Status.OK


def test_bands_and_detectors_call_the_same_numbers_red() -> None:
    """Fails if a curve is red on the page where its detector has another bound."""
    bounds = limits({"kl_too_large/bound": 5.0})
    red = {band.metric: band.at(bounds).red for band in DASHBOARD}
    assert red["rollout_corr/ratio_min"][0] == bounds["sampler_learner_gap/ratio_min"]
    assert red["rollout_corr/ratio_max"][1] == bounds["sampler_learner_gap/ratio_max"]
    assert red["sampling/sampling_logp_difference/mean"][1] == bounds["sampler_learner_gap/bound"]
    assert red["completions/clipped_ratio"][1] == bounds["truncation/bound"]
    assert red["frac_reward_zero_std"][1] == bounds["empty_gradient/bound"]
    assert red["kl"][1] == 5.0, "what a run sets for its detector moves the band, too"
    assert red["entropy"] == (
        bounds["entropy_collapse/floor"], bounds["entropy_explosion/ceiling"]
    )  # fmt: skip
    assert red["clip_ratio/region_mean"][1] == bounds["clip_fraction/bound"]
    assert red["critic/vf_explained_var"][0] == bounds["value_divergence/explained"]
    for band in (*DASHBOARD, *FIT_DASHBOARD):
        ends = (*band.at(bounds).healthy, *band.at(bounds).red)
        assert all(end is None or isinstance(end, float) for end in ends), band.metric


def test_shares_and_their_intervals_read_as_shares() -> None:
    """Fails if all is written as 1, or an end of an interval lies where no share can be."""
    assert (percent(1.0), percent(0.7234)) == ("100 %", "72.3 %")
    ends = score_interval([0.0, 0.0, 0.1, 0.0])
    assert 0 <= ends.low <= ends.high <= 1
    assert score_interval([-3.0, 5.0]).low < -3
    moved = difference([0.0, 0.3], [1.0, 0.7])
    assert -1 <= moved.low <= moved.high <= 1


def test_a_share_that_moves_is_written_in_percent_with_its_interval() -> None:
    """Fails if `cut off: 0.1 -> 1` stands where all rollouts are cut off."""
    moved = difference([0.1, 0.1, 0.12], [1.0, 1.0, 1.0]).text(percent)
    assert moved.startswith("10.7 % -> 100 % (+89.3 % [+")
    found = said("clip_fraction", clip_ratio__region_mean=[0.4] * 20)
    assert "above 30 % for 20 steps" in found.evidence[0].text


def test_a_movement_that_is_certain_at_one_step_is_not_taken_back_at_the_next() -> None:
    """Fails if a score that falls is named, then not, then named, as its interval shrinks and
    grows with each step."""
    wobble = [0.05 * ((7 * n) % 5 - 2) for n in range(60)]
    reward = [0.3 + 0.006 * n + wobble[n] for n in range(60)]
    score = [0.42 - 0.0022 * n + wobble[-n] for n in range(60)]
    named = [
        said("score_falls", reward=reward[:n], score=score[:n]).status is Status.FAIL
        for n in range(35, 61)
    ]
    assert True in named
    assert all(named[named.index(True) :])
    over = [0.42] * 60
    assert said("score_falls", reward=[*reward, *reward[-1:] * 40],
                score=[*score, *over]).status is Status.OK  # fmt: skip
