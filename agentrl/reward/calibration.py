"""Calibration of a reward model: the probabilities it gives against those that come true.

On held-out pairs p = sigmoid(D / T), D the reward of the chosen answer less that of the rejected
one. p is folded: it is that of the answer which the model prefers, and the outcome is the
probability that this answer is the better one: 0 or 1 by its label, or the label probability
where that is known, so that planted data is measured against the truth and not against its draws.

Legend: `_N` held-out pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl.errors import DataError
from agentrl.metrics.intervals import wilson_interval
from agentrl.reward.temperature import (
    Floats,
    checked_array,
    checked_labels,
    fit_temperature,
    log_losses,
    sigmoid,
    win_logits,
)

__all__ = [
    "Calibration",
    "CalibrationReport",
    "ReliabilityBin",
    "TemperatureEffect",
    "calibration_report",
    "fit_temperature",
    "length_r2",
    "measure_calibration",
]

BINS = 15
"""Bins of the reliability table, each with as many pairs as another."""
LENGTH_MATCHED = 0.1
"""Pairs with |log(length of chosen / length of rejected)| below it are of one length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Pairs of similar confidence."""

    count: int
    """Pairs."""
    mean_p: float
    """Mean probability that the model gives to the answer it prefers, 1/2 to 1."""
    share_right: float
    """Share of them in which that answer is the better one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Accuracy and calibration of a set of pairs at one temperature."""

    pairs: int
    """Pairs, at least 1."""
    accuracy: float
    """Share in which the preferred answer is the better one; equal rewards count 1/2."""
    accuracy_low: float
    """Lower end of Wilson's 95 % interval of the accuracy."""
    accuracy_high: float
    """Upper end of that interval."""
    ece: float
    """Expected calibration error: mean over pairs of |share right - mean p| of their bin
    (https://arxiv.org/abs/1706.04599 equation 3, here with bins of equal count)."""
    ece_by_chance: float
    """Value that `ece` has on average, by the draw of the labels alone, where every p is right: no
    model can be seen to be better. 0 where all labels are given as probabilities."""
    max_error: float
    """Maximum calibration error: the largest |share right - mean p| of a bin."""
    brier: float
    """Mean squared error of p, expected over the label."""
    nll: float
    """Mean negative log-likelihood of the label in nats, expected over the label."""
    table: tuple[ReliabilityBin, ...]
    """In order of rising confidence; fewer than 15 where there are fewer pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureEffect:
    """Calibration of a set of pairs before and after its temperature."""

    before: Calibration
    """At temperature 1."""
    after: Calibration
    """At the temperature of the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """Calibration of a reward model, and its liking for length."""

    temperature: float
    """Temperature of every `after`."""
    overall: TemperatureEffect
    """All pairs."""
    length_matched: TemperatureEffect | None
    """Pairs of nearly equal length; None without any."""
    by_source: Mapping[str, TemperatureEffect]
    """Source to its pairs; empty where no sources were given."""
    length_r2: float | None
    """Share of the variance of the reward that its answer's length explains, 0 to 1; None where
    all rewards are equal."""

    def to_json(self) -> dict[str, Any]:
        """All fields by their names, as plain dictionaries, lists and numbers that JSON knows."""
        document = asdict(self)
        # `asdict` keeps tuples, which a reader of the file would get back as lists.
        effects = [document["overall"], document["length_matched"]]
        for effect in [*effects, *document["by_source"].values()]:
            for part in (effect or {}).values():
                part["table"] = list(part["table"])
        return document


def calibration_report(
    chosen: ArrayLike,
    rejected: ArrayLike,
    *,
    chosen_lengths: ArrayLike,
    rejected_lengths: ArrayLike,
    temperature: float,
    variances: ArrayLike | None = None,
    label_probability: ArrayLike | None = None,
    sources: Sequence[str] | None = None,
) -> CalibrationReport:
    """Measure a reward model on held-out pairs.

    A temperature fitted on these very pairs makes `after` look a little better than it is.

    Args:
        chosen: [_N] rewards of the chosen answers.
        rejected: [_N] rewards of the rejected answers.
        chosen_lengths: [_N] `Completion.length` of the chosen answers.
        rejected_lengths: [_N] the same of the rejected ones.
        temperature: as from `fit_temperature`.
        variances: [_N] sum of both variances, of a reward model that gives deviations.
        label_probability: [_N] probability that the chosen answer is the better one, 1 where only
            the label is known; None takes every label as certain.
        sources: [_N] name of the data set or domain of each pair.

    Raises:
        DataError: no pairs, arrays that do not fit or are not finite, or a temperature that is not
            positive.
    """
    what = "calibration_report"
    won = checked_array(f"{what}: chosen", chosen)
    count = len(won)
    lost = checked_array(f"{what}: rejected", rejected, count)
    long = checked_array(f"{what}: chosen_lengths", chosen_lengths, count, low=0.0)
    short = checked_array(f"{what}: rejected_lengths", rejected_lengths, count, low=0.0)
    label = checked_labels(what, label_probability, count)
    spread = None
    if variances is not None:
        spread = checked_array(f"{what}: variances", variances, count, low=0.0)
    if not (math.isfinite(temperature) and temperature > 0):
        raise DataError(
            f"{what}: got temperature {temperature}, expected a positive number, as from "
            "fit_temperature"
        )
    if sources is not None and len(sources) != count:
        raise DataError(f"{what}: got {len(sources)} sources, expected one for each of {count}")

    def effect(where: NDArray[np.bool_]) -> TemperatureEffect:
        inside = None if spread is None else spread[where]
        before, after = (
            measure_calibration(win_logits((won - lost)[where], each, inside), label[where])
            for each in (1.0, temperature)
        )
        return TemperatureEffect(before=before, after=after)

    with np.errstate(divide="ignore", invalid="ignore"):
        matched = np.abs(np.log(long / short)) < LENGTH_MATCHED
    names = np.asarray(() if sources is None else sources, dtype=object)
    return CalibrationReport(
        temperature=float(temperature),
        overall=effect(np.ones(count, dtype=np.bool_)),
        length_matched=effect(matched) if matched.any() else None,
        by_source={name: effect(names == name) for name in sorted(set(names))},
        length_r2=length_r2(np.concatenate([won, lost]), np.concatenate([long, short])),
    )


def measure_calibration(logits: ArrayLike, label_probability: ArrayLike | None) -> Calibration:
    """Accuracy and calibration of pairs whose temperature is already in their logits.

    Args:
        logits: [_N] log-odds that the chosen answer is the better one, as of `win_logits`.
        label_probability: [_N] probability that it is; None takes every label as certain.

    Raises:
        DataError: no pairs, or arrays that do not fit or are not finite.
    """
    odds = checked_array("calibration: logits", logits)
    count = len(odds)
    label = checked_labels("calibration", label_probability, count)
    p = sigmoid(odds)
    folded = sigmoid(np.abs(odds))
    # Neither answer is preferred at 0, so it is right half of the time.
    right = np.where(odds > 0, label, np.where(odds < 0, 1.0 - label, 0.5))
    table = _reliability(folded, right)
    errors = [abs(each.share_right - each.mean_p) for each in table]
    interval = wilson_interval(right.tolist())
    assert interval is not None, "outcomes lie in [0, 1]"
    brier = label * (1.0 - p) ** 2 + (1.0 - label) * p**2
    return Calibration(
        pairs=count,
        accuracy=math.fsum(right) / count,
        accuracy_low=interval[0],
        accuracy_high=interval[1],
        ece=math.fsum(e * each.count for e, each in zip(errors, table, strict=True)) / count,
        ece_by_chance=_ece_by_chance(folded, label),
        max_error=max(errors),
        brier=math.fsum(brier) / count,
        nll=math.fsum(log_losses(odds, label)) / count,
        table=table,
    )


def _reliability(folded: Floats, right: Floats) -> tuple[ReliabilityBin, ...]:
    """Bins of equal count, up to one pair.

    Pairs of one p may fall into two bins; each then counts with the mean outcome of all of them, so
    that the table does not depend on the order of the pairs.
    """
    values, which, shared = np.unique(folded, return_inverse=True, return_counts=True)
    outcome = (np.bincount(which, weights=right, minlength=len(values)) / shared)[which]
    order = np.argsort(folded, kind="stable")
    bins = np.array_split(order, min(BINS, len(folded)))
    return tuple(
        ReliabilityBin(
            count=len(inside),
            mean_p=math.fsum(folded[inside]) / len(inside),
            share_right=math.fsum(outcome[inside]) / len(inside),
        )
        for inside in bins
    )


def _ece_by_chance(folded: Floats, label: Floats) -> float:
    """Mean |error| of a bin is sqrt(2 / pi) times its deviation, as the errors are near normal."""
    drawn = np.where((label == 0.0) | (label == 1.0), folded * (1.0 - folded), 0.0)
    bins = np.array_split(drawn[np.argsort(folded, kind="stable")], min(BINS, len(folded)))
    deviations = math.fsum(math.sqrt(math.fsum(inside)) for inside in bins)
    return math.sqrt(2.0 / math.pi) * deviations / len(folded)


def length_r2(rewards: ArrayLike, lengths: ArrayLike) -> float | None:
    """R^2 of the straight line that predicts rewards from lengths, 0 to 1.

    0 where all lengths are equal, None where all rewards are, as there is nothing to explain.

    Args:
        rewards: one for each answer, chosen and rejected ones alike.
        lengths: of the same answers.

    Raises:
        DataError: no answers, or arrays that do not fit or are not finite.
    """
    y = checked_array("length_r2: rewards", rewards)
    x = checked_array("length_r2: lengths", lengths, len(y))
    if y.min() == y.max():
        return None
    if x.min() == x.max():
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float(min(1.0, (x @ y) ** 2 / ((x @ x) * (y @ y))))
