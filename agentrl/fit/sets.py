"""The encoded data of a fit, as every rank has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.batch.examples import Example
from agentrl.config.fit import FitConfig
from agentrl.fit.data.fit_data import FitData
from agentrl.fit.model import FitReference


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSets:
    """Encoded data of a fit."""

    train: FitData
    """Trained on."""
    evals: Mapping[str, FitData]
    """By the name in `eval.datasets`."""
    centered: FitData | None = None
    """Answers that center rewards, one an example; None without `objective.center_data`."""

    @property
    def every(self) -> list[Example]:
        """Examples of both, those that are trained on first."""
        return [example for data in (self.train, *self.evals.values()) for example in data.examples]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSetup:
    """Arguments of a further rank."""

    config: FitConfig
    """With the number of steps, and the device of this rank."""
    sets: FitSets
    """Encoded data, as rank 0 has it."""
    base: Path
    """Absolute folder from which relative paths of the config start."""
    run_dir: Path
    """Run directory, in which the log-probabilities of the reference are."""
    checkpoint: Path | None
    """To go on from."""
    reference: FitReference | None
    """Model that the log-probabilities in the run directory are of."""
    address: str
    """Meeting point of the ranks."""
    rank: int
    """Of this process, from 1."""
    log: Path
    """File that takes log records."""
