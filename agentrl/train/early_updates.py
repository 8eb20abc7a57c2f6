"""Updates of a step that were made before the last of its rollouts had ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from agentrl.batch.records import PackedBatch, RowKey, StepBatch
from agentrl.errors import TrainError
from agentrl.metrics.bag import MetricBag


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyUpdates:
    """Updates that were made of the step at hand, and what they measured."""

    made: list[PackedBatch] = field(default_factory=list[PackedBatch])
    """In their order."""
    ref: dict[RowKey, Any] = field(default_factory=dict[RowKey, Any])
    """Log-probabilities of the reference for their rows; empty without a KL penalty."""
    tokens: MetricBag = field(default_factory=MetricBag)
    """Counts over the tokens of this rank."""
    metrics: MetricBag = field(default_factory=MetricBag)
    """Counts over updates, the same on every rank."""

    def check_first_of(self, batch: StepBatch) -> None:
        """See that these are the first updates of the whole step, bit for bit.

        Raises:
            TrainError: they are not, and the weights are not those of a step that waits.
        """
        for index, made in enumerate(self.made):
            whole = batch.updates[index] if index < len(batch.updates) else None
            if whole is None or not same_update(made, whole):
                raise TrainError(
                    f"update {index} was trained before all rollouts of the step had ended and is "
                    "not the one of the whole step: rows, advantages or counts differ. "
                    "Please report this; --resume trains the step again from its stored rollouts"
                )


def same_update(one: PackedBatch, other: PackedBatch) -> bool:
    """True if two updates hold the same rows and numbers, bit for bit."""
    pairs = zip(one.micro_batches, other.micro_batches, strict=False)
    return (
        _counts(one) == _counts(other)
        and len(one.micro_batches) == len(other.micro_batches)
        and all(_equal(*pair) for pair in pairs)
    )


def _counts(update: PackedBatch) -> Mapping[str, Any]:
    names = [item.name for item in fields(update) if item.name != "micro_batches"]
    return {name: getattr(update, name) for name in names}


def _equal(one: Any, other: Any) -> bool:
    return all(
        _plain(getattr(one, item.name)) == _plain(getattr(other, item.name)) for item in fields(one)
    )


def _plain(value: Any) -> Any:
    """As bytes, so that NaN where nothing is trained equals itself."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    return value
