"""The temperature that makes differences of rewards into honest probabilities.

Legend: `_N` held-out pairs, `_K` trial temperatures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl.errors import DataError

Floats = NDArray[np.float64]

TEMPERATURE_BOUNDS = (1e-3, 1e3)
"""A temperature outside of these is reported and not returned."""
_HALVINGS = 60
_TRIALS = 121
"""Temperatures between which minima are looked for where there may be several: 20 a decade."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTemperature:
    """A temperature, and whether a prior had to help."""

    value: float
    """T, in units of the reward."""
    prior: str
    """The prior that decided and the reason for it; empty where the pairs alone gave T."""


def win_logits(differences: ArrayLike, temperature: float, variances: ArrayLike | None) -> Floats:
    """[_N] Logit of the probability that the chosen answer is the better one.

    D / T; with variances (D / T) / sqrt(1 + pi v / (8 T^2)), the usual closed form for the mean of
    a sigmoid under a Gaussian (MacKay 1992, "The evidence framework applied to classification
    networks"; for reward models https://arxiv.org/abs/2503.22480).

    Args:
        differences: [_N] reward of the chosen answer less that of the rejected one.
        temperature: T, in units of the reward.
        variances: [_N] s_chosen^2 + s_rejected^2 of a reward model that gives deviations.
    """
    scaled = np.asarray(differences, dtype=np.float64) / temperature
    if variances is None:
        return scaled
    spread = np.asarray(variances, dtype=np.float64)
    return scaled / np.sqrt(1.0 + math.pi * spread / (8.0 * temperature**2))


def sigmoid(logits: Floats) -> Floats:
    """Probabilities of logits, without overflow.

    Example:
        >>> sigmoid(np.array([-1000.0, 0.0])).tolist()
        [0.0, 0.5]
    """
    small = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)


def log_losses(logits: Floats, label_probability: Floats) -> Floats:
    """[_N] Expected negative log-likelihood of the labels: -q log p - (1 - q) log(1 - p)."""
    wins, losses = np.logaddexp(0.0, -logits), np.logaddexp(0.0, logits)
    return label_probability * wins + (1.0 - label_probability) * losses


def fit_temperature(
    differences: ArrayLike,
    *,
    variances: ArrayLike | None = None,
    label_probability: ArrayLike | None = None,
) -> float:
    """Temperature with the least mean Bradley-Terry negative log-likelihood on held-out pairs.

    Temperature scaling, https://arxiv.org/abs/1706.04599 section 4.2. Without variances the loss
    is convex in 1 / T, and the sign of its derivative is bisected. With variances it may have
    several minima: each between two trial temperatures is bisected, and the lowest one taken.

    Args:
        differences: [_N] reward of the chosen answer less that of the rejected one.
        variances: [_N] sum of the variances of both rewards, where the model gives them.
        label_probability: [_N] probability that the chosen answer is the better one; None takes
            every label as certain.

    Raises:
        DataError: no pairs, arrays that do not fit or are not finite, or no best temperature
            between `TEMPERATURE_BOUNDS`, as where all pairs are ordered right, or all wrong.

    Example:
        Three of four right at a distance of 1: sigmoid(1 / T) = 3 / 4.

        >>> round(fit_temperature([1.0, 1.0, 1.0, -1.0]) * math.log(3), 9)
        1.0
    """
    what = "fit_temperature"
    apart = checked_array(f"{what}: differences", differences)
    count = len(apart)
    spread = None
    if variances is not None:
        spread = checked_array(f"{what}: variances", variances, count, low=0.0)
    label = checked_labels(what, label_probability, count)
    trials = np.geomspace(*TEMPERATURE_BOUNDS, 2 if spread is None else _TRIALS)  # of 1 / T
    slopes = [_slope(apart, 1.0 / trial, spread, label) for trial in trials]
    # A slope of 0 has no sign: the minimum itself, or a sigmoid that is 1 to the last bit.
    signed = [(trial, slope) for trial, slope in zip(trials, slopes, strict=True) if slope]
    found = [
        _bisected(apart, low, high, spread, label)
        for (low, falls), (high, rises) in pairwise(signed)
        if falls < 0 < rises
    ]
    smallest, largest = TEMPERATURE_BOUNDS
    ends = [smallest] * (slopes[-1] <= 0) + [largest] * (slopes[0] >= 0)

    def loss(trial: float) -> float:
        return float(np.mean(log_losses(win_logits(apart, trial, spread), label)))

    best = min([*found, *ends], key=loss)
    if best in ends:
        raise DataError(_at_bound(apart, label, best))
    return best


def fit_regular_temperature(
    differences: ArrayLike,
    *,
    variances: ArrayLike | None = None,
    label_probability: ArrayLike | None = None,
) -> FittedTemperature:
    """Temperature as from `fit_temperature`, with a weak prior where no pair is ordered wrong.

    Labels that the scores separate have no finite best temperature. They are fitted with Platt's
    targets in place of 1 ("Probabilistic outputs for support vector machines", 1999, section 2.2),
    t+ = (N+ + 1) / (N+ + 2) and t- = 1 / (N- + 2): the mean of the probability of a label under a
    uniform prior, after N of one kind (Laplace's rule of succession). A pair is an example of both
    kinds, once either way round, so both counts are N, and its target is (N + 1) / (N + 2). Left
    out: Platt's offset, as the two ways round of a pair have opposite logits.

    Args:
        differences: as in `fit_temperature`.
        variances: as in `fit_temperature`.
        label_probability: as in `fit_temperature`.

    Raises:
        DataError: as `fit_temperature`, but for pairs that are all ordered right; with variances
            also for these, where the variances alone keep the model less sure than the targets.

    Example:
        Two of two right at a distance of 1: sigmoid(1 / T) = 3 / 4.

        >>> found = fit_regular_temperature([1.0, 1.0])
        >>> round(found.value * math.log(3), 9)
        1.0
        >>> found.prior
        "all 2 pairs that differ are ordered right, so T is that of Platt's target 3/4"
    """
    apart = checked_array("fit_temperature: differences", differences)
    label = checked_labels("fit_temperature", label_probability, len(apart))
    if not _separated(apart, label):
        best = fit_temperature(apart, variances=variances, label_probability=label)
        return FittedTemperature(value=best, prior="")
    count = len(apart)
    target = (count * label + 1.0) / (count + 2.0)
    best = fit_temperature(apart, variances=variances, label_probability=target)
    return FittedTemperature(
        value=best,
        prior=f"all {np.count_nonzero(apart)} pairs that differ are ordered right, so T is that of "
        f"Platt's target {count + 1}/{count + 2}",
    )


def _separated(apart: Floats, label: Floats) -> bool:
    """Whether the labels are certain, and no pair that differs is ordered wrong."""
    certain = np.all((label == 0.0) | (label == 1.0))
    return bool(certain and apart.any() and np.all((label - 0.5) * apart >= 0))


def _slope(apart: Floats, temperature: float, spread: Floats | None, label: Floats) -> float:
    """Derivative of the mean loss by 1 / T, up to a positive factor.

    Scaled by the largest difference, so that it neither overflows nor is lost.
    """
    logits = win_logits(apart, temperature, spread)
    # (1 - q) p - q (1 - p) is p - q, without the rounding of a difference near certain labels.
    residual = (1.0 - label) * sigmoid(logits) - label * sigmoid(-logits)
    by = apart / (np.max(np.abs(apart)) or 1.0)
    if spread is not None:
        # d/db of b D / sqrt(1 + c b^2) is D (1 + c b^2)^(-3/2), with b = 1 / T.
        by = by * (1.0 + math.pi * spread / (8.0 * temperature**2)) ** -1.5
    return float(np.mean(residual * by))


def _bisected(
    apart: Floats, low: float, high: float, spread: Floats | None, label: Floats
) -> float:
    """Temperature at which the slope is 0, between two values of 1 / T, halved on a log scale."""
    below, above = math.log(low), math.log(high)
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        if _slope(apart, math.exp(-middle), spread, label) < 0:
            below = middle
        else:
            above = middle
    return math.exp(-(below + above) / 2)


def _at_bound(apart: Floats, label: Floats, bound: float) -> str:
    count = len(apart)
    smallest, largest = TEMPERATURE_BOUNDS
    expected = f"expected a best temperature between {smallest:g} and {largest:g}"
    if not apart.any():
        return (
            f"temperature: all {count} differences of rewards are 0, so every temperature fits "
            f"alike; {expected}; give pairs whose answers have different rewards"
        )
    right = np.where(label == 0.5, 0.0, np.sign(label - 0.5)) * np.sign(apart)
    share = f"{np.count_nonzero(right > 0)} of {count} pairs are ordered right"
    if _separated(apart, label):
        return (
            f"temperature: {share} and none wrong, so the likelihood rises without end as T goes "
            f"to 0, got the bound {bound:g}; {expected}; calibrate on more held-out pairs, or "
            "harder ones, so that some are ordered wrong"
        )
    if np.all(right <= 0):
        return (
            f"temperature: {share}, all that differ are wrong, so the likelihood rises without "
            f"end as T goes to infinity, got the bound {bound:g}; {expected}; see whether chosen "
            "and rejected are the wrong way round"
        )
    if bound == smallest:
        reason = (
            "the differences are too small for their labels, or the variances too large: train "
            "longer, or scale the rewards up"
        )
    else:
        reason = (
            "the differences say nothing about the labels, or are too large: see whether the "
            "model is better than chance on these pairs, or scale the rewards down"
        )
    return f"temperature: {share}, got the bound {bound:g}; {expected}; {reason}"


def checked_array(
    name: str,
    values: ArrayLike,
    count: int | None = None,
    *,
    low: float = -math.inf,
    high: float = math.inf,
) -> Floats:
    """[_N] Finite numbers in a range, as float64.

    Args:
        name: for messages, as in `fit_temperature: variances`.
        values: what was given.
        count: length that it must have; None takes any but 0.
        low: least number allowed.
        high: largest number allowed.

    Raises:
        DataError: it is none; names the first wrong number.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: got no numbers ({error}), expected one a pair") from None
    if array.ndim != 1 or not len(array):
        raise DataError(f"{name}: got shape {array.shape}, expected one number a pair, at least 1")
    if count is not None and len(array) != count:
        raise DataError(f"{name}: got {len(array)} numbers, expected one for each of {count} pairs")
    wrong = ~np.isfinite(array) | (array < low) | (array > high)
    if wrong.any():
        at = int(np.argmax(wrong))
        span = "" if (low, high) == (-math.inf, math.inf) else f" in [{low:g}, {high:g}]"
        raise DataError(f"{name}: got {array[at]} at {at}, expected finite numbers{span}")
    return array


def checked_labels(name: str, given: ArrayLike | None, count: int) -> Floats:
    """[_N] Probability of each label; 1 where None was given.

    Raises:
        DataError: a wrong length, or a number outside [0, 1].
    """
    if given is None:
        return np.ones(count)
    return checked_array(f"{name}: label_probability", given, count, low=0.0, high=1.0)
