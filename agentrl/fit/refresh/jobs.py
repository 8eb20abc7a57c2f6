"""The work of a refresh in a process of its own, and its result; values of JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentrl.fit.refresh.origin import OldPairs

TRAIN_PAIRS = "train.parquet"
"""New and old pairs together, in the folder of a refresh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshJob:
    """Inputs of training a reward model further and measuring both."""

    folder: str
    """Folder of the refresh, with its new pairs and the held-out ones."""
    step: int
    """Training steps done; part of the seed."""
    current: str
    """Checkpoint folder or hub name of the present version."""
    origin: str
    """`path` of the run file: the model that the run began with."""
    base: str
    """Folder that `origin` starts from."""
    models: str
    """Folder of the versions."""
    version: int
    """Number of the new one."""
    old: OldPairs | None
    """Source of old pairs."""
    earlier: tuple[str, ...]
    """Files with the pairs of earlier refreshes."""
    held_out: float
    """Share of the tasks of which old pairs are not trained on, either."""
    seed: int
    """Seed of the run."""
    steps: int
    """Optimizer steps."""
    learning_rate: float
    """Learning rate of all of them."""
    device: str
    """As `model.device`."""
    longest: int
    """Most tokens of a rollout."""
    needs_scale: bool
    """The run whitens scores, so a model without a scale cannot be used."""

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> RefreshJob:
        """Read back what `dataclasses.asdict` and JSON made of one."""
        old = document["old"]
        return cls(
            **{
                **document,
                "old": None if old is None else OldPairs(**old),
                "earlier": tuple(document["earlier"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOutcome:
    """Result of training a reward model further."""

    before: float
    """Accuracy of the present model on the held-out pairs."""
    after: float
    """Accuracy of the new one on the same pairs."""
    old_pairs: int
    """Old pairs that were mixed in."""
    loss: float
    """Loss of the last step."""
    scale: str
    """Words about the scale that was stored."""
    temperature: float
    """Temperature of the new model."""
    temperature_kept: bool
    """The held-out pairs gave none, so it is that of the version before."""
