"""Posterior of a reward model's head: how unsure it is of answers unlike those of its pairs.

The last layer alone is taken as uncertain, and its posterior as Gaussian (Laplace's approximation,
https://arxiv.org/abs/2106.14806; for reward models https://arxiv.org/abs/2402.13210):

    H    = sum over pairs of p (1 - p) d d^T,   d = h_chosen - h_rejected,   p = sigmoid(w . d)
    cov  = (H + a I)^-1
    s(h) = sqrt((h - m)^T cov (h - m))

with h what the head reads at the end of an answer, w its weights and m the mean of h over the
answers of the pairs: pairs decide differences alone, so a reward is sure against the mean answer.
The precision a of the prior is the one with the most evidence, the fixed point of

    a = g / |w|^2,   g = sum_i e_i / (e_i + a),   e the eigenvalues of H

where g counts the directions that the pairs decide (MacKay, 1992, "Bayesian interpolation").

Legend: `_N` pairs or answers, `_E` hidden size.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl.errors import DataError
from agentrl.machine.files import write_whole

POSTERIOR_FILE = "reward_posterior.npz"
"""File beside the checkpoint of a reward model."""

_ROUNDS = 1000
_SMALLEST_PRIOR = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPosterior:
    """Mean of the features, and mean and covariance of the head's weights."""

    weight_E: NDArray[np.float64]
    """w of the head that it is of; another head in the same folder has no posterior."""
    mean_E: NDArray[np.float64]
    """m, in which the deviation is 0."""
    covariance_EE: NDArray[np.float64]
    """(H + a I)^-1, in raw scores squared over features squared."""
    prior: float
    """a, the precision of the weights without pairs."""
    decided: float
    """g, the number of directions of the weights that the pairs decide; from 0 to E."""
    pairs: int
    """Pairs that it was made of."""

    def deviations(self, features_NE: ArrayLike) -> NDArray[np.float64]:
        """[_N] Standard deviation of each reward, in raw scores.

        Args:
            features_NE: what the head reads; NaN where it does.
        """
        apart_NE = np.asarray(features_NE, dtype=np.float64) - self.mean_E
        squares_N = ((apart_NE @ self.covariance_EE) * apart_NE).sum(axis=1)
        return np.sqrt(np.maximum(squares_N, 0.0))

    def save(self, folder: Path) -> Path:
        """Write `reward_posterior.npz` beside a checkpoint, whole or not at all; its path.

        Raises:
            OSError: as while writing.
        """
        buffer = io.BytesIO()
        np.savez(
            buffer,
            weight=self.weight_E,
            mean=self.mean_E,
            covariance=self.covariance_EE,
            prior=self.prior,
            decided=self.decided,
            pairs=self.pairs,
        )
        write_whole(folder / POSTERIOR_FILE, buffer.getvalue())
        return folder / POSTERIOR_FILE

    @classmethod
    def load(cls, folder: Path) -> HeadPosterior:
        """Read the posterior of a checkpoint.

        Raises:
            DataError: the file is missing, broken, or of other shapes.
        """
        path = folder / POSTERIOR_FILE
        if not path.is_file():
            raise DataError(
                f"{path} does not exist: it is not known how sure this reward model is; write it "
                f"with `agentrl rm posterior {folder} --data PAIRS`, the pairs of its fit"
            )
        try:
            # An array that is no archive would not be a context.
            with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as stored:
                weight, mean, covariance = (stored[n] for n in ("weight", "mean", "covariance"))
                prior, decided = float(stored["prior"]), float(stored["decided"])
                pairs = int(stored["pairs"])
        except (OSError, TypeError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise DataError(f"{path} cannot be read ({error}); write it again") from error
        width = mean.shape[0] if mean.ndim == 1 else 0
        if not width or weight.shape != (width,) or covariance.shape != (width, width):
            raise DataError(
                f"{path} has weights of shape {weight.shape}, a mean of shape {mean.shape} and a "
                f"covariance of shape {covariance.shape}, expected (E,), (E,) and (E, E); write "
                "it again"
            )
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            raise DataError(f"{path} holds numbers that are not finite; write it again")
        return cls(
            weight_E=weight,
            mean_E=mean,
            covariance_EE=covariance,
            prior=prior,
            decided=decided,
            pairs=pairs,
        )


class PosteriorFit:
    """Sums over pairs, which may come a part at a time; the posterior at the end."""

    def __init__(self, weight_E: ArrayLike) -> None:
        """Begin without pairs.

        Args:
            weight_E: w of the fitted head.

        Raises:
            DataError: weights that are all 0 or not finite.
        """
        self._weight_E = np.asarray(weight_E, dtype=np.float64)
        if not np.isfinite(self._weight_E).all() or not self._weight_E.any():
            raise DataError(
                "the head of the reward model has weights that are "
                f"{'all 0' if np.isfinite(self._weight_E).all() else 'not finite'}; fit it first"
            )
        width = len(self._weight_E)
        self._hessian_EE, self._sum_E = np.zeros((width, width)), np.zeros(width)
        self._pairs = 0

    def add(self, chosen_NE: ArrayLike, rejected_NE: ArrayLike) -> None:
        """Add some of the pairs.

        Args:
            chosen_NE: what the head reads of the chosen answers.
            rejected_NE: the same of the rejected ones.

        Raises:
            DataError: features that are not finite.
        """
        chosen, rejected = (np.asarray(x, dtype=np.float64) for x in (chosen_NE, rejected_NE))
        if not (np.isfinite(chosen).all() and np.isfinite(rejected).all()):
            raise DataError(
                "the reward model reads an answer as numbers that are not finite; the checkpoint "
                "is broken"
            )
        apart_NE = chosen - rejected
        # p (1 - p) with the margin's sign aside: it is even, and exp cannot overflow.
        falls_N = np.exp(-np.abs(apart_NE @ self._weight_E))
        weights_N = falls_N / (1.0 + falls_N) ** 2
        self._hessian_EE += (apart_NE * weights_N[:, None]).T @ apart_NE
        self._sum_E += (chosen + rejected).sum(axis=0)
        self._pairs += len(chosen)

    def posterior(self) -> HeadPosterior:
        """The posterior of all pairs so far.

        Raises:
            DataError: no pairs, or pairs of equal answers that decide nothing.
        """
        found_E, axes_EE = np.linalg.eigh(self._hessian_EE)
        found_E = np.maximum(found_E, 0.0)
        if not self._pairs or not found_E.any():
            raise DataError(
                f"{self._pairs} pairs decide nothing about the head: their answers look alike to "
                "the model; give the pairs of its fit"
            )
        norm = float(self._weight_E @ self._weight_E)
        prior = 1.0
        for _ in range(_ROUNDS):
            decided = float((found_E / (found_E + prior)).sum())
            old, prior = prior, max(decided / norm, _SMALLEST_PRIOR)
            if abs(prior - old) <= 1e-9 * old:
                break
        return HeadPosterior(
            weight_E=self._weight_E,
            mean_E=self._sum_E / (2 * self._pairs),
            covariance_EE=(axes_EE / (found_E + prior)) @ axes_EE.T,
            prior=prior,
            decided=decided,
            pairs=self._pairs,
        )
