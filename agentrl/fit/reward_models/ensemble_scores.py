"""An ensemble of reward models as one model: the mean of its members, and how far they are apart.

Each member is whitened by its own scale first; else the one with the largest scores would decide.
Heads on one body are members that share a forward pass. Legend: `_N` rows, `_K` members.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.batch.examples import ScoredTokens
from agentrl.batch.records import FloatArray
from agentrl.fit.reward_models.rollout_rewards import RowScorer
from agentrl.reward.scale import RewardScale, ensemble_reward


class EnsembleScores:
    """Scores rows by all members; a `RowScorer` itself."""

    outputs = 2
    """Mean of the members, and the standard deviation between them."""
    heads = 1
    """One: what comes out is one reward."""

    def __init__(self, members: Sequence[RowScorer], scales: Sequence[RewardScale]) -> None:
        """Take the members.

        Args:
            members: at least two, or one with several heads.
            scales: [_K] of each, or of each of its heads, in their order.
        """
        self._members, self._scales = tuple(members), tuple(scales)
        self.members = len(self._scales)
        """K, heads counted one by one."""
        self.batch_tokens = min(member.batch_tokens for member in members)
        """Most packed tokens of a pass, as `RowScorer.batch_tokens`."""
        self.vocabulary = min(member.vocabulary for member in members)
        """Token ids that all of them read, as `RowScorer.vocabulary`."""

    def scores(self, rows: Sequence[ScoredTokens]) -> FloatArray:
        """[N, 2] Mean and deviation (ddof 1) of the members' whitened scores.

        A number that is not finite is returned as it is.
        """
        raw_NK = [member.scores(rows)[:, :: member.outputs] for member in self._members]
        return combined_scores(np.concatenate(raw_NK, axis=1), self._scales)


def combined_scores(raw_NK: FloatArray, scales: Sequence[RewardScale]) -> FloatArray:
    """[N, 2] Mean and deviation (ddof 1) of whitened scores; NaN where one is not finite.

    Args:
        raw_NK: raw scores of each member.
        scales: [_K] of each.
    """
    found_N2 = np.full((len(raw_NK), 2), np.nan)
    finite_N = np.isfinite(raw_NK).all(axis=1)
    if finite_N.any():
        means, deviations = ensemble_reward(raw_NK[finite_N].T, 0.0, scales=scales)
        found_N2[finite_N] = np.stack([means, deviations], axis=1)
    return found_N2
