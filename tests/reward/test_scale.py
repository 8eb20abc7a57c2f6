"""The stored scale of a reward model, and what an ensemble makes of its members."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

from agentrl.errors import ConfigError, DataError
from agentrl.reward.scale import (
    SCALE_FILE,
    RewardScale,
    ensemble_reward,
    load_scales,
    save_scales,
)

SCALE = RewardScale(temperature=1.7, mean=-0.3, std=2.3)


def test_whiten_then_clip() -> None:
    assert SCALE.normalised(3.4) == pytest.approx((3.4 / 1.7 + 0.3) / 2.3)
    scale = RewardScale(temperature=2.0, mean=1.0, std=0.5)
    # 50 whitens to 48; clipped before, to 10, it would whiten to 8.
    assert scale.normalised([4.0, 50.0, -50.0], (-10.0, 10.0)).tolist() == [2.0, 10.0, -10.0]
    assert scale.normalised([50.0]).tolist() == [48.0]


def test_a_fitted_scale_whitens_what_it_was_fitted_on() -> None:
    rewards = [3.0, -1.0, 4.0, 1.0, -5.0]
    scale = RewardScale.fitted(rewards, temperature=2.0)
    assert scale.mean == pytest.approx(fmean(rewards) / 2)
    assert scale.std == pytest.approx(stdev(rewards) / 2)
    white = scale.normalised(rewards).tolist()
    assert fmean(white) == pytest.approx(0.0, abs=1e-15)
    assert stdev(white) == pytest.approx(1.0)


def test_a_saved_scale_comes_back_to_the_bit(tmp_path: Path) -> None:
    scale = RewardScale(temperature=1 / 3, mean=-math.pi, std=0.1 + 0.2)
    path = scale.save(tmp_path)
    assert path == tmp_path / "reward_scale.json"
    assert RewardScale.load(tmp_path) == scale
    assert set(json.loads(path.read_bytes())) == {"temperature", "mean", "std"}
    assert [each.name for each in tmp_path.iterdir()] == [SCALE_FILE]


@pytest.mark.parametrize("heads", [(), (3,)])
def test_a_folded_head_gives_the_normalised_reward(heads: tuple[int, ...]) -> None:
    draw = np.random.default_rng(4)
    weight, bias = draw.normal(size=(*heads, 64)), draw.normal(size=heads)
    hidden = draw.normal(size=(64, 50))
    folded_weight, folded_bias = SCALE.fold_into_head(weight, bias)
    assert (folded_weight.shape, folded_bias.shape) == (weight.shape, np.shape(bias))
    raw = weight @ hidden + np.asarray(bias)[..., None]
    folded = folded_weight @ hidden + folded_bias[..., None]
    np.testing.assert_allclose(folded, SCALE.normalised(raw), rtol=0, atol=1e-12)


def test_a_head_without_bias_has_one_when_folded() -> None:
    weight, bias = SCALE.fold_into_head(np.array([1.0, 2.0], dtype=np.float32))
    assert weight.dtype == bias.dtype == np.float64
    assert bias == pytest.approx(0.3 / 2.3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "reward_scale.json does not exist: the scale of this reward model is not known"),
        ("{", "reward_scale.json: cannot be read.*expected an object with temperature, mean"),
        (b"\xff", "reward_scale.json: cannot be read"),
        ("[1, 2]", "reward_scale.json: got list; expected an object"),
        ('{"temperature": 1, "mean": 0}', r"got \['mean', 'temperature'\]; expected an object"),
        ('{"temperature": 1, "mean": 0, "std": 1, "x": 1}', r"'x'\]; expected an object"),
        ('{"temperature": 1, "mean": 0, "std": 0}', "reward_scale.json: .*std is 0, expected"),
        ('{"temperature": 1, "mean": 0, "std": -1}', "std is -1, expected a positive number"),
        ('{"temperature": 0, "mean": 0, "std": 1}', "temperature is 0, expected a positive"),
        ('{"temperature": -2, "mean": 0, "std": 1}', "temperature is -2, expected a positive"),
        ('{"temperature": 1, "mean": NaN, "std": 1}', "mean is nan, expected a finite number"),
        ('{"temperature": 1, "mean": "0", "std": 1}', "mean is '0', expected a number"),
        ('{"temperature": true, "mean": 0, "std": 1}', "temperature is True, expected a number"),
    ],
)
def test_a_scale_file_that_cannot_be_used(
    tmp_path: Path, content: str | bytes | None, message: str
) -> None:
    if content is not None:
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / SCALE_FILE).write_bytes(data)
    with pytest.raises(DataError, match=message):
        RewardScale.load(tmp_path)


def test_heads_have_scales_of_their_own(tmp_path: Path) -> None:
    scales = (SCALE, RewardScale(mean=0.1 + 0.2))
    assert save_scales(scales, tmp_path) == tmp_path / SCALE_FILE
    assert load_scales(tmp_path, 2) == scales
    with pytest.raises(DataError, match="got 2 heads; expected an object with heads, a list of 3"):
        load_scales(tmp_path, 3)
    with pytest.raises(DataError, match=r"got \['heads'\]; expected an object with temperature"):
        RewardScale.load(tmp_path)
    (tmp_path / SCALE_FILE).write_text('{"heads": [{"temperature": 1, "mean": 0, "std": 1}, 5]}')
    with pytest.raises(DataError, match=r"reward_scale\.json: head 1: got int; expected an object"):
        load_scales(tmp_path, 2)
    SCALE.save(tmp_path)
    assert load_scales(tmp_path, 1) == (SCALE,)
    with pytest.raises(DataError, match="got dict; expected an object with heads"):
        load_scales(tmp_path, 2)


@pytest.mark.parametrize(
    ("rewards", "temperature", "message"),
    [
        ([1.0], 1.0, r"shape \(1,\), 0 of them not finite; expected at least 2"),
        ([1.0, math.nan], 1.0, "1 of them not finite"),
        ([2.0, 2.0, 2.0], 1.0, "the deviation of 3 scores is 0, expected one above 0"),
        ([0.1] * 3 + [0.1 + 1e-12], 1.0, "the deviation of 4 scores is .*e-1., expected one"),
        ([1.0, 2.0], 0.0, "temperature is 0, expected a positive number"),
    ],
)
def test_what_no_scale_can_be_fitted_on(
    rewards: list[float], temperature: float, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        RewardScale.fitted(rewards, temperature=temperature)


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, -2.0), (math.nan, 1.0)])
def test_bounds_the_wrong_way_round(bounds: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="expected low < high"):
        SCALE.normalised([0.0], bounds)


def test_an_ensemble_subtracts_its_disagreement() -> None:
    scores = [[1.0, 0.0], [2.0, 0.0], [6.0, 0.0]]
    rewards, between = ensemble_reward(scores, 0.5)
    assert between.tolist() == pytest.approx([stdev([1, 2, 6]), 0.0])
    assert rewards.tolist() == pytest.approx([3 - 0.5 * stdev([1, 2, 6]), 0.0])


def test_members_are_whitened_before_their_mean() -> None:
    """Fails if raw scores are averaged: two members that agree but for scale have no spread."""
    raw = np.array([[1.0, 2.0, 4.0], [110.0, 120.0, 140.0]])
    scales = [RewardScale.fitted(row) for row in raw]
    rewards, between = ensemble_reward(raw, 1.0, scales=scales)
    np.testing.assert_allclose(between, 0.0, atol=1e-12)
    np.testing.assert_allclose(rewards, scales[0].normalised(raw[0]), atol=1e-12)


def test_a_single_model_is_itself() -> None:
    rewards, between = ensemble_reward([[1.0, 2.0]], 0.0)
    assert (rewards.tolist(), between.tolist()) == ([1.0, 2.0], [0.0, 0.0])


@pytest.mark.parametrize(
    ("scores", "disagreement", "scales", "error", "message"),
    [
        ([[1.0]], 0.5, None, ConfigError, "disagreement is 0.5, but one reward model cannot"),
        ([[1.0], [2.0]], -1.0, None, ConfigError, "disagreement is -1.0, expected a number from 0"),
        ([[1.0], [2.0]], math.nan, None, ConfigError, "disagreement is nan"),
        ([1.0, 2.0], 0.0, None, DataError, r"shape \(2,\), expected \(members, answers\)"),
        (np.zeros((0, 3)), 0.0, None, DataError, r"shape \(0, 3\), expected"),
        ([[1.0, 2.0], [1.0, math.inf]], 0.0, None, DataError, "member 1 gave answer 1 a score of"),
        ([[1.0], [2.0]], 0.0, [SCALE], DataError, "got 1 scales, expected one for each of 2"),
    ],
)
def test_an_ensemble_that_cannot_be(
    scores: Any, disagreement: float, scales: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ensemble_reward(scores, disagreement, scales=scales)
