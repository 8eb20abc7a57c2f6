"""Measures a reward model on held-out pairs: accuracy, calibration, length, probes, scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agentrl.fit.rating.disagreement import Disagreement, disagreement_of, head_accuracy
from agentrl.fit.rating.fitted_scale import fit_scale
from agentrl.fit.rating.probe_scores import ProbeResult, probe_model
from agentrl.fit.rating.scored_pairs import NamedPairs, halves_by_prompt, score_pairs
from agentrl.reward.calibration import CalibrationReport, calibration_report
from agentrl.reward.scale import RewardScale

if TYPE_CHECKING:
    from agentrl.fit.rating.reward_model import OpenRewardModel

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
    temperature_prior: str
    """The prior that decided the temperature, or those of heads; empty where pairs alone did."""
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
    head_scales: tuple[RewardScale, ...] = ()
    """[_K] Scale of each head for RL, in place of `scale`; empty for a model of one head."""
    disagreement: Disagreement | None = None
    """Deviation between members or heads; None where the model is no ensemble."""

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
    raw = model.raw()
    scored = score_pairs(raw, data, done=done)
    if calibrate_on is not None:
        fitted = score_pairs(raw, calibrate_on, done=done)
        measured, on = scored, f"{len(fitted.pairs)} pairs of {calibrate_on.name}"
    else:
        first, second = halves_by_prompt(scored.pairs, data.name)
        fitted, measured = scored.part(first), scored.part(second)
        on = f"half of the prompts of {data.name} ({len(first)} pairs); the rest is measured"
    white = scored if whiten_on is None else score_pairs(raw, whiten_on, done=done)
    whitened_on = f"{2 * len(white.pairs)} answers of {(whiten_on or data).name}"
    numbers = range(model.members if model.heads is not None else 0)
    heads = [fit_scale(fitted.head(number), white.head(number)) for number in numbers]
    accuracies = [head_accuracy(measured, number) for number in numbers]
    if heads:
        used = [head.whitening for head in heads]
        fitted, measured, white = (each.combined(used) for each in (fitted, measured, white))
        model = model.whitened(used)
    whole = fit_scale(fitted, white)
    priors = [whole.temperature_prior] if whole.temperature_prior else []
    priors += [
        f"head {number}: {head.temperature_prior}"
        for number, head in enumerate(heads)
        if head.temperature_prior
    ]
    scale, scale_problem = whole.scale, whole.scale_problem
    if heads:  # RL whitens each of them by its own, and their mean no more
        scale = None
        scale_problem = "; ".join(
            f"head {number}: {head.scale_problem}"
            for number, head in enumerate(heads)
            if head.scale_problem
        )
    probes, without = probe_model(model, measured, probed, done)
    sources = [pair.source.partition(",")[0] for pair in measured.pairs]
    return RewardReport(
        model=model.path,
        data=data.name,
        calibrated_on=on,
        temperature_problem=whole.temperature_problem,
        temperature_prior="; ".join(priors),
        left_out=dict(scored.left_out),
        calibration=calibration_report(
            measured.chosen_NO[:, 0],
            measured.rejected_NO[:, 0],
            chosen_lengths=[pair.chosen.length for pair in measured.pairs],
            rejected_lengths=[pair.rejected.length for pair in measured.pairs],
            temperature=whole.temperature,
            variances=measured.variances_N,
            label_probability=measured.labels_N,
            sources=sources if len(set(sources)) > 1 else None,
        ),
        probes=probes,
        not_probed=without,
        whitened_on=whitened_on,
        scale=scale,
        scale_problem=scale_problem,
        head_scales=() if scale_problem else tuple(head.whitening for head in heads),
        disagreement=(
            disagreement_of(measured, model.members, accuracies) if model.members > 1 else None
        ),
    )
