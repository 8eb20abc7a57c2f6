"""The last look at a gradient before weights move."""

from __future__ import annotations

import math
from typing import ClassVar, Protocol

from agentrl.batch.records import PackedBatch
from agentrl.errors import TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.agreement import (
    numbers_to_try,
    on_every_rank,
    rows_without_finite_gradient,
)
from agentrl.train.backends.contract import TrainBackend


class GradientPass(Protocol):
    """Forward and backward of one model."""

    name: ClassVar[str]
    """For messages."""

    @property
    def backend(self) -> TrainBackend:
        """The backend that holds the gradient."""
        ...

    def accumulate(self, part: PackedBatch, metrics: MetricBag) -> object:
        """Add the gradient of the micro-batches of `part`."""
        ...


def finite_norm(
    work: GradientPass, update: PackedBatch, part: PackedBatch, *, whole_rollouts: bool = False
) -> float:
    """Make the gradient that of the whole update, and return its norm. All ranks call.

    Args:
        work: has accumulated this rank's share.
        update: the whole of it.
        part: this rank's share.
        whole_rollouts: the loss needs all rows of a rollout together (the answers of a pair), so
            what is named is rollouts: the examples of a fit.

    Raises:
        TrainError: the norm is not finite. Names the rows whose own gradient is not; no weight has
            moved.
    """
    backend = work.backend
    backend.reduce_gradients()
    norm = backend.grad_norm()
    if math.isfinite(norm):
        return norm
    numbers = numbers_to_try(backend, update, whole_rollouts=whole_rollouts)
    found = on_every_rank(
        backend,
        lambda: rows_without_finite_gradient(
            backend,
            update,
            part,
            lambda alone: work.accumulate(alone, MetricBag()),
            numbers=numbers,
            whole_rollouts=whole_rollouts,
        ),
    )
    backend.clear_gradients()
    names = [row.rollout_id if whole_rollouts else str(row) for rows in found for row in rows]
    what = "examples" if whole_rollouts else "rows"
    raise TrainError(
        f"the gradient norm of the {work.name} is {norm}; {what} whose own gradient is not finite: "
        f"{', '.join(names) or 'none alone, only their sum'}; the update is given up and the "
        "weights are unchanged"
    )
