"""The scale of a reward model: raw scores in, rewards of mean 0 and deviation 1 out.

It is fitted once, on held-out data, and stored beside the checkpoint. Nothing fits it again in RL,
where the scores drift with the policy and a scale that follows them would hide it.

Legend: `_K` members of an ensemble, `_N` answers, `_H` hidden size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl.errors import ConfigError, DataError
from agentrl.machine.files import write_whole

SCALE_FILE = "reward_scale.json"
"""File beside the checkpoint of a reward model."""

_ONE = "expected an object with temperature, mean and std"
_SMALLEST_STD = 1e-8
"""Below it the rewards are all one value, and dividing would only blow rounding up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardScale:
    """Temperature, mean and deviation of the raw scores of a reward model.

    Example:
        >>> RewardScale(temperature=2.0, mean=1.0, std=0.5).normalised([4.0, 2.0]).tolist()
        [2.0, 0.0]
    """

    temperature: float = 1.0
    """T of `fit_temperature`, in units of the raw score; positive."""
    mean: float = 0.0
    """Mean of score / T over the answers that the scale was fitted on."""
    std: float = 1.0
    """Standard deviation (ddof 1) of score / T over the same answers; positive."""

    def __post_init__(self) -> None:
        for name in ("temperature", "mean", "std"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise DataError(f"reward scale: {name} is {value!r}, expected a number")
            if not math.isfinite(value):
                raise DataError(f"reward scale: {name} is {value}, expected a finite number")
        if self.temperature <= 0:
            raise DataError(
                f"reward scale: temperature is {self.temperature:g}, expected a positive number, "
                "as from fit_temperature"
            )
        if self.std <= 0:
            raise DataError(
                f"reward scale: std is {self.std:g}, expected a positive number; a model that "
                "gives all answers one score has learned nothing"
            )

    @classmethod
    def fitted(cls, rewards: ArrayLike, *, temperature: float = 1.0) -> RewardScale:
        """Scale under which these rewards have mean 0 and deviation 1.

        Args:
            rewards: [_N] raw scores, at least 2 different ones.
            temperature: T, as from `fit_temperature`.

        Raises:
            DataError: fewer than 2 scores, one that is not finite, all of them equal, or a
                temperature that is not positive.
        """
        scores = np.asarray(rewards, dtype=np.float64)
        if scores.ndim != 1 or len(scores) < 2 or not np.isfinite(scores).all():
            raise DataError(
                f"reward scale: got scores of shape {scores.shape}, "
                f"{np.count_nonzero(~np.isfinite(scores))} of them not finite; expected at least "
                "2 finite ones"
            )
        unit = cls(temperature=temperature)  # checks the temperature before anything is divided
        scaled = scores / unit.temperature
        std = float(scaled.std(ddof=1))
        if std < _SMALLEST_STD:
            raise DataError(
                f"reward scale: the deviation of {len(scores)} scores is {std:g}, expected one "
                "above 0; a model that gives all answers one score has learned nothing"
            )
        return cls(temperature=temperature, mean=float(scaled.mean()), std=std)

    def normalised(
        self, rewards: ArrayLike, bounds: tuple[float, float] | None = None
    ) -> NDArray[np.float64]:
        """Whitened and then clipped: clip((r / T - mean) / std), of the same shape.

        Args:
            rewards: raw scores, of any shape.
            bounds: lowest and highest value, in deviations; None clips nothing.

        Raises:
            ConfigError: the lower bound is not below the upper one.
        """
        white = (np.asarray(rewards, dtype=np.float64) / self.temperature - self.mean) / self.std
        if bounds is None:
            return white
        low, high = bounds
        if not low < high:
            raise ConfigError(f"reward bounds: got [{low:g}, {high:g}], expected low < high")
        return np.clip(white, low, high)

    def fold_into_head(
        self, weight: ArrayLike, bias: ArrayLike = 0.0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weight and bias of a linear head that gives the normalised reward by itself, unclipped.

        w' = w / (T std), b' = (b / T - mean) / std. A critic that starts from the reward model then
        predicts the reward that RL uses.

        Args:
            weight: [..., _H] of the score head.
            bias: of the same head; 0 where it has none, but then the folded one has.
        """
        folded = np.asarray(weight, dtype=np.float64) / (self.temperature * self.std)
        return folded, self.normalised(bias)

    def save(self, folder: Path) -> Path:
        """Write `reward_scale.json` beside a checkpoint, whole or not at all; returns its path.

        Raises:
            OSError: as while writing.
        """
        path = folder / SCALE_FILE
        write_whole(path, json.dumps(asdict(self), indent=1).encode() + b"\n")
        return path

    @classmethod
    def load(cls, folder: Path) -> RewardScale:
        """Read the scale of a checkpoint.

        Raises:
            DataError: the file is missing or broken, or holds a number that cannot be one.
        """
        path = folder / SCALE_FILE
        return cls._parsed(_read(path, _ONE), where=str(path))

    @classmethod
    def _parsed(cls, document: object, *, where: str) -> RewardScale:
        if not isinstance(document, dict) or document.keys() != {"temperature", "mean", "std"}:
            got = sorted(document) if isinstance(document, dict) else type(document).__name__
            raise DataError(f"{where}: got {got}; {_ONE}")
        try:
            return cls(**document)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None


def save_scales(scales: Sequence[RewardScale], folder: Path) -> Path:
    """Write `reward_scale.json` of a model with several heads, whole or not at all.

    Args:
        scales: [_K] of each head.
        folder: of the checkpoint.

    Returns:
        The path of the file.

    Raises:
        OSError: as while writing.
    """
    path = folder / SCALE_FILE
    document = {"heads": [asdict(scale) for scale in scales]}
    write_whole(path, json.dumps(document, indent=1).encode() + b"\n")
    return path


def load_scales(folder: Path, heads: int) -> tuple[RewardScale, ...]:
    """[_K] The scale of each head of a checkpoint; that of `RewardScale.load` for a single one.

    Args:
        folder: of the checkpoint.
        heads: K of the model.

    Raises:
        DataError: the file is missing or broken, or is of a model with other heads.
    """
    if heads == 1:
        return (RewardScale.load(folder),)
    path = folder / SCALE_FILE
    expected = f"expected an object with heads, a list of {heads} scales"
    document = _read(path, expected)
    found = document.get("heads") if isinstance(document, dict) else None
    if not isinstance(found, list) or len(found) != heads:
        got = f"{len(found)} heads" if isinstance(found, list) else type(document).__name__
        raise DataError(f"{path}: got {got}; {expected}, as `agentrl rm report --store` writes")
    return tuple(
        RewardScale._parsed(each, where=f"{path}: head {number}")
        for number, each in enumerate(found)
    )


def _read(path: Path, expected: str) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist: the scale of this reward model is not known; take the "
            "folder that a reward model fit wrote, or calibrate the model"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {expected}") from error


def ensemble_reward(
    scores_KN: ArrayLike,
    disagreement: float,
    *,
    scales: Sequence[RewardScale] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[_N] Reward mean_k - disagreement * std_k, and [_N] that deviation between members.

    The mean of raw scores would be that of the member with the largest scale, so members are
    whitened before it (https://arxiv.org/abs/2310.02743, there uncertainty-weighted optimisation,
    which subtracts the variance; here the deviation, in the unit of the reward).

    Args:
        scores_KN: [_K, _N] scores; already whitened, or raw with `scales`.
        disagreement: how many deviations (ddof 1) between members are subtracted; at least 0.
        scales: [_K] that of each member, which whitens its raw scores first.

    Raises:
        ConfigError: a disagreement below 0, or above 0 with a single member.
        DataError: no members, scores that are not finite, or not as many scales as members.

    Example:
        >>> rewards, deviations = ensemble_reward([[1.0, 2.0], [1.0, 4.0]], 0.5)
        >>> [round(float(x), 3) for x in (*rewards, *deviations)]
        [1.0, 2.293, 0.0, 1.414]
    """
    scores = np.asarray(scores_KN, dtype=np.float64)
    if scores.ndim != 2 or not len(scores):
        raise DataError(
            f"ensemble: got scores of shape {scores.shape}, expected (members, answers)"
        )
    members = len(scores)
    if not np.isfinite(scores).all():
        member, answer = np.argwhere(~np.isfinite(scores))[0]
        raise DataError(
            f"ensemble: member {member} gave answer {answer} a score of {scores[member, answer]}, "
            "expected a finite number"
        )
    if not (math.isfinite(disagreement) and disagreement >= 0):
        raise ConfigError(f"ensemble: disagreement is {disagreement}, expected a number from 0")
    if members == 1 and disagreement > 0:
        raise ConfigError(
            f"ensemble: disagreement is {disagreement:g}, but one reward model cannot disagree; "
            "train an ensemble of at least 2, or set disagreement to 0"
        )
    if scales is not None:
        if len(scales) != members:
            raise DataError(
                f"ensemble: got {len(scales)} scales, expected one for each of {members} members"
            )
        scores = np.stack(
            [scale.normalised(row) for scale, row in zip(scales, scores, strict=True)]
        )
    between = scores.std(axis=0, ddof=1) if members > 1 else np.zeros(scores.shape[1])
    return scores.mean(axis=0) - disagreement * between, between
