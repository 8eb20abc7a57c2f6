"""Temperature and whitening of the scores of a reward model, or of one head of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentrl.errors import DataError
from agentrl.fit.rating.scored_pairs import ScoredPairs
from agentrl.reward.scale import RewardScale
from agentrl.reward.temperature import fit_regular_temperature


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedScale:
    """Scale of some scores, or the reason why they have none."""

    temperature: float
    """T; 1 where there is none."""
    temperature_problem: str
    """Reason why there is no temperature; empty where there is one."""
    temperature_prior: str
    """The prior that decided the temperature, and why; empty where the pairs alone gave it."""
    scale: RewardScale | None
    """Scale for RL; None where there is no temperature or no spread of scores."""
    scale_problem: str
    """Reason why there is no scale; empty where there is one."""
    whitening: RewardScale
    """The scale; without a temperature one at T = 1, which whitens alike, as T cancels; and without
    a spread of scores one that changes nothing."""


def fit_scale(fitted: ScoredPairs, white: ScoredPairs) -> FittedScale:
    """Fit the temperature on some pairs, and mean and deviation on the answers of others.

    Args:
        fitted: pairs for the temperature.
        white: pairs whose answers are whitened.
    """
    temperature, problem, prior = 1.0, "", ""
    apart = fitted.chosen_NO[:, 0] - fitted.rejected_NO[:, 0]
    try:
        found = fit_regular_temperature(
            apart, variances=fitted.variances_N, label_probability=fitted.labels_N
        )
        temperature, prior = found.value, found.prior
    except DataError as error:
        problem = str(error)
    whitening, scale_problem = RewardScale(), ""
    rewards = np.concatenate([white.chosen_NO[:, 0], white.rejected_NO[:, 0]])
    try:
        whitening = RewardScale.fitted(rewards, temperature=temperature)
    except DataError as error:
        scale_problem = str(error)
    scale_problem = problem or scale_problem
    return FittedScale(
        temperature=temperature,
        temperature_problem=problem,
        temperature_prior=prior,
        scale=None if scale_problem else whitening,
        scale_problem=scale_problem,
        whitening=whitening,
    )
