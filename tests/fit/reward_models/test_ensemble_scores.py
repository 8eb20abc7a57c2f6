"""The scores of an ensemble: whitened, averaged, and how far members are apart."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl.batch.examples import ScoredTokens
from agentrl.fit.reward_models.ensemble_scores import EnsembleScores
from agentrl.reward.scale import RewardScale

ROWS = [ScoredTokens(prompt_ids=(1,), ids=(length,)) for length in range(3)]


class Fixed:
    """A member with scores that are known."""

    def __init__(self, *scores, batch_tokens=64):
        self.outputs, self.heads, self.batch_tokens = 1, 1, batch_tokens
        self.vocabulary = 100 - batch_tokens
        self._scores = np.array(scores, dtype=np.float64)[:, None]

    def scores(self, rows):
        return self._scores[: len(rows)]


def test_members_are_whitened_before_their_mean():
    """Fails on a mean of raw scores, in which the second member would decide alone."""
    members = [Fixed(0.0, 1.0, 2.0), Fixed(300.0, 200.0, 100.0, batch_tokens=32)]
    scales = [
        RewardScale(temperature=1.0, mean=1.0, std=1.0),
        RewardScale(temperature=10.0, mean=20.0, std=10.0),
    ]
    made = EnsembleScores(members, scales)
    assert made.batch_tokens == 32
    assert made.vocabulary == 36
    found = made.scores(ROWS)
    assert found[:, 0].tolist() == pytest.approx([0.0, 0.0, 0.0])
    assert found[:, 1].tolist() == pytest.approx([2**0.5, 0.0, 2**0.5])


def test_a_row_that_is_not_finite_costs_the_others_nothing():
    members = [Fixed(0.0, np.nan, 2.0), Fixed(0.0, 1.0, 2.0)]
    found = EnsembleScores(members, [RewardScale(), RewardScale()]).scores(ROWS)
    assert np.isnan(found[1]).all()
    assert found[[0, 2]].tolist() == [[0.0, 0.0], [2.0, 0.0]]
