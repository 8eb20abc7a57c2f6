"""An ensemble of reward models as one model: the mean of its members, and how far they are apart.

Each member is whitened by its own scale first; else the one with the largest scores would decide.
Legend: `_N` rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.batch.examples import ScoredTokens
from agentrl.batch.records import FloatArray
from agentrl.reward.scale import RewardScale, ensemble_reward
from agentrl.train.reward_models.rollout_rewards import RowScorer


class EnsembleScores:
    """Scores rows by all members; a `RowScorer` itself."""

    outputs = 2
    """Mean of the members, and the standard deviation between them."""

    def __init__(self, members: Sequence[RowScorer], scales: Sequence[RewardScale]) -> None:
        """Take the members.

        Args:
            members: at least two.
            scales: of each, in their order.
        """
        self._members, self._scales = tuple(members), tuple(scales)
        self.batch_tokens = min(member.batch_tokens for member in members)
        """Most packed tokens of a pass, as `RowScorer.batch_tokens`."""

    def scores(self, rows: Sequence[ScoredTokens]) -> FloatArray:
        """[N, 2] Mean and deviation (ddof 1) of the members' whitened scores.

        A number that is not finite is returned as it is.
        """
        raw_KN = np.stack([member.scores(rows)[:, 0] for member in self._members])
        found_N2 = np.full((len(rows), 2), np.nan)
        finite_N = np.isfinite(raw_KN).all(axis=0)
        if finite_N.any():
            means, deviations = ensemble_reward(raw_KN[:, finite_N], 0.0, scales=self._scales)
            found_N2[finite_N] = np.stack([means, deviations], axis=1)
        return found_N2
