"""Measures a reward model on held-out pairs: accuracy, calibration, length, probes, scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl.errors import DataError
from agentrl.reward.calibration import CalibrationReport, calibration_report
from agentrl.reward.scale import RewardScale
from agentrl.reward.temperature import fit_temperature
from agentrl.runtime.fit.rating.probe_scores import ProbeResult, probe_model
from agentrl.runtime.fit.rating.scored_pairs import (
    NamedPairs,
    ScoredPairs,
    halves_by_prompt,
    score_pairs,
)

if TYPE_CHECKING:
    from agentrl.runtime.fit.rating.reward_model import OpenRewardModel

PROBED = 200
"""Pairs of which probes are made, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReport:
    """All that was measured of a reward model."""

    model: str
    """Checkpoint folder or hub name."""
    data: str
    """Source of the pairs."""
    calibrated_on: str
    """Pairs that the temperature was fitted on, in words."""
    temperature_problem: str
    """Reason why there is no temperature, so that `after` is at 1; empty where there is one."""
    left_out: dict[str, int]
    """Reasons for which pairs were not scored, with their number."""
    calibration: CalibrationReport
    """On the pairs that the temperature was not fitted on."""
    probes: dict[str, ProbeResult]
    """By the names of `PROBES`; empty where no pair has a text."""
    not_probed: int
    """Pairs of those that were to be probed without a single text to change."""
    whitened_on: str
    """Answers that mean and deviation of the scale come from, in words."""
    scale: RewardScale | None
    """Scale for RL; None where there is no temperature or no spread of scores."""
    scale_problem: str
    """Reason why there is no scale; empty where there is one."""

    def to_json(self) -> dict[str, Any]:
        """All fields by their names, as JSON knows them."""
        return {**asdict(self), "calibration": self.calibration.to_json()}


def measure_reward_model(
    model: OpenRewardModel,
    data: NamedPairs,
    *,
    calibrate_on: NamedPairs | None = None,
    whiten_on: NamedPairs | None = None,
    probed: int = PROBED,
    done: Callable[[int, int], None] = lambda done, of: None,
) -> RewardReport:
    """Score pairs and measure what the scores are worth.

    Args:
        model: the reward model.
        data: held-out pairs.
        calibrate_on: pairs that the temperature is fitted on; None takes half of the prompts of
            `data`, and measures on the other half.
        whiten_on: pairs whose answers give mean and deviation of the scale; None takes `data`.
        probed: pairs of which probes are made, at most.
        done: called with rows that are scored, and all rows of the pass.

    Raises:
        DataError: no pair can be scored, a score is not finite, or all pairs have one prompt and
            there is no `calibrate_on`.
    """
    scored = score_pairs(model, data, done=done)
    if calibrate_on is not None:
        fitted = score_pairs(model, calibrate_on, done=done)
        measured, on = scored, f"{len(fitted.pairs)} pairs of {calibrate_on.name}"
    else:
        first, second = halves_by_prompt(scored.pairs, data.name)
        fitted, measured = scored.part(first), scored.part(second)
        on = f"half of the prompts of {data.name} ({len(first)} pairs); the rest is measured"
    temperature, problem = _temperature(fitted)
    white = scored if whiten_on is None else score_pairs(model, whiten_on, done=done)
    whitened_on = f"{2 * len(white.pairs)} answers of {(whiten_on or data).name}"
    scale, scale_problem = None, problem
    if not problem:
        scale, scale_problem = _scale(white, temperature)
    probes, without = probe_model(model, measured, probed, done)
    sources = [pair.source.partition(",")[0] for pair in measured.pairs]
    return RewardReport(
        model=model.path,
        data=data.name,
        calibrated_on=on,
        temperature_problem=problem,
        left_out=dict(scored.left_out),
        calibration=calibration_report(
            measured.chosen_NO[:, 0],
            measured.rejected_NO[:, 0],
            chosen_lengths=[pair.chosen.length for pair in measured.pairs],
            rejected_lengths=[pair.rejected.length for pair in measured.pairs],
            temperature=temperature,
            variances=measured.variances_N,
            label_probability=measured.labels_N,
            sources=sources if len(set(sources)) > 1 else None,
        ),
        probes=probes,
        not_probed=without,
        whitened_on=whitened_on,
        scale=scale,
        scale_problem=scale_problem,
    )


def _temperature(fitted: ScoredPairs) -> tuple[float, str]:
    """T, or 1 and why there is none."""
    apart = fitted.chosen_NO[:, 0] - fitted.rejected_NO[:, 0]
    try:
        found = fit_temperature(
            apart, variances=fitted.variances_N, label_probability=fitted.labels_N
        )
    except DataError as error:
        return 1.0, str(error)
    return found, ""


def _scale(white: ScoredPairs, temperature: float) -> tuple[RewardScale | None, str]:
    rewards = np.concatenate([white.chosen_NO[:, 0], white.rejected_NO[:, 0]])
    try:
        return RewardScale.fitted(rewards, temperature=temperature), ""
    except DataError as error:
        return None, str(error)
