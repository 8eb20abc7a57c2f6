"""Measures how sure the head of a reward model is, and of answers like which it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from agentrl.disk.other_models import member_runs
from agentrl.errors import ConfigError
from agentrl.fit.rating.reward_model import TOGETHER
from agentrl.fit.rating.scored_pairs import NamedPairs, encode_pairs
from agentrl.reward.posterior import HeadPosterior, PosteriorFit

if TYPE_CHECKING:
    from agentrl.batch.records import FloatArray
    from agentrl.fit.rating.reward_model import OpenRewardModel
    from agentrl.train.score_model import ScoreModel

Done = Callable[[int, int], None]
"""Called with the number of rows that are read, and of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPosterior:
    """The posterior of one head, and the deviations that it gives."""

    path: str
    """Checkpoint folder."""
    posterior: HeadPosterior
    """Of its head."""
    own: float
    """Median deviation of the answers that it was made of, in raw scores."""
    other: float | None
    """The same of other answers; None without any."""
    auroc: float | None
    """Probability that one of the others has a larger deviation than one of its own, ties 1/2."""


def posterior_text(found: MeasuredPosterior) -> str:
    """One line about a posterior, and one about other answers where there are some."""
    made = found.posterior
    text = (
        f"{found.path}: {made.pairs} pairs decide {made.decided:.1f} of {len(made.mean_E)} "
        f"directions of the head; median deviation of their answers {found.own:.3g} (raw scores)"
    )
    if found.other is not None:
        text += (
            f"\nother answers: median {found.other:.3g}, larger than of an answer of the pairs "
            f"with probability {found.auroc:.3f}"
        )
    return text


def checkpoint_paths(rm: str) -> list[str]:
    """The reward models that a path stands for: itself, or the members of an ensemble."""
    return [*map(str, member_runs(Path(rm).expanduser()))] or [rm]


def measure_posterior(
    model: OpenRewardModel,
    pairs: NamedPairs,
    *,
    against: NamedPairs | None = None,
    done: Done = lambda done, of: None,
) -> MeasuredPosterior:
    """Fit the posterior on pairs, and compare its deviations of their answers with those of others.

    Args:
        model: a single reward model of one head.
        pairs: those that it was fitted on.
        against: other answers, as those of a policy far from them; None for none.
        done: called while rows are read.

    Raises:
        ConfigError: an ensemble, or a model of several heads.
        DataError: no pair can be read, or pairs that decide nothing.
    """
    own = pair_features(model, pairs, done)
    fit = PosteriorFit(_single(model).reward_weight)
    for start in range(0, len(own), TOGETHER):
        part = own[start : start + TOGETHER]
        fit.add(part[::2], part[1::2])
    posterior = fit.posterior()
    deviations = posterior.deviations(own)
    others = None
    if against is not None:
        others = posterior.deviations(pair_features(model, against, done))
    return MeasuredPosterior(
        path=model.path,
        posterior=posterior,
        own=float(np.median(deviations)),
        other=None if others is None else float(np.median(others)),
        auroc=None if others is None else auroc(others, deviations),
    )


def pair_features(
    model: OpenRewardModel, data: NamedPairs, done: Done = lambda done, of: None
) -> FloatArray:
    """[2 N, E] Numbers that the head reads of both answers of each pair, the chosen one first.

    Args:
        model: a single reward model of one head.
        data: pairs; those that it cannot read are left out.
        done: called while rows are read.

    Raises:
        ConfigError: an ensemble, or a model of several heads.
        DataError: no pair can be read.
    """
    scored = _single(model)
    rows = encode_pairs(model, data).rows
    parts: list[FloatArray] = []
    for start in range(0, len(rows), TOGETHER):
        parts.append(scored.features(rows[start : start + TOGETHER]))
        done(min(start + TOGETHER, len(rows)), len(rows))
    return np.concatenate(parts)


def _single(model: OpenRewardModel) -> ScoreModel:
    if model.members > 1:
        raise ConfigError(
            f"{model.path} has {model.members} heads, whose deviation is how far they are apart "
            "(reward.models.NAME.disagreement); a posterior is of one head"
        )
    return cast("ScoreModel", model.model)


def auroc(high: FloatArray, low: FloatArray) -> float:
    """P(a number of `high` is above one of `low`), ties 1/2: Mann-Whitney's U by its pairs.

    Args:
        high: at least one number.
        low: at least one.

    Example:
        >>> auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
        0.875
    """
    order = np.sort(low)
    below = np.searchsorted(order, high, "left") + np.searchsorted(order, high, "right")
    return float(below.mean() / (2 * len(low)))
