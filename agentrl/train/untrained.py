"""Reads the rows that no update computes, for the metrics of the policy.

Once a step, before its first update and without gradient, so that nothing of the training changes.
`agentrl.batch.untrained` says which rows are read and what they stand for.
"""

from __future__ import annotations

import logging
import time

import torch

from agentrl.batch.records import MicroBatch, PackedBatch, StepBatch
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.agreement import check_shares, on_every_rank
from agentrl.train.backends.contract import ModelPasses, TrainBackend
from agentrl.train.objective import measured_loss, measured_policy

logger = logging.getLogger(__name__)


def is_compared(index: int, update: PackedBatch, *, old_known: bool) -> bool:
    """True if an update measures how far the old policy is from the sampler, for each row once.

    Args:
        index: of the update in its step.
        update: the update.
        old_known: the log-probabilities before the step were asked for; without them only the first
            update sees the policy before the step.
    """
    return index == 0 or (update.epoch == 0 and old_known)


class UntrainedMeter:
    """Measures the policy at the rows that no update computes."""

    def __init__(self, backend: TrainBackend, algorithm: AlgorithmSection) -> None:
        """Take the parts.

        Args:
            backend: runs the policy.
            algorithm: resolved.
        """
        self._backend, self._algorithm = backend, algorithm
        self._warned = False

    def measure(self, batch: StepBatch, *, old_known: bool, moved: bool = False) -> MetricBag:
        """Metrics over all ranks, the same on each; empty where every row is computed.

        Call inside `backend.running()`, before the first update of the whole step; all ranks call.

        Args:
            batch: of the whole step.
            old_known: as for `is_compared`.
            moved: updates were made before the step was complete, so the policy at hand is no
                longer the sampler's, and the two are not compared on these rows.

        Raises:
            TrainError: a forward pass failed on some rank.
        """
        bag = MetricBag()
        if batch.untrained is None:
            return bag
        began = time.perf_counter()
        part = self._backend.share(batch.untrained)
        check_shares(self._backend, [batch.untrained], [part])
        epochs = 1 + max((update.epoch for update in batch.updates), default=0)
        first = [(i, update) for i, update in enumerate(batch.updates) if update.epoch == 0]
        tokens = sum(update.global_tokens for _, update in first)
        compared = sum(
            update.global_tokens
            for index, update in first
            if is_compared(index, update, old_known=old_known)
        )
        share = (compared / tokens if tokens else 1.0) * (not moved)
        for found in on_every_rank(
            self._backend, lambda: self._measure(part, passes=epochs, compared=share)
        ):
            bag.merge(found)
        bag.sum("timing_s/measure", time.perf_counter() - began)
        return bag

    @torch.no_grad()
    def _measure(self, part: PackedBatch, *, passes: int, compared: float) -> MetricBag:
        def ask(model: ModelPasses, micro: MicroBatch) -> tuple[MetricBag, TrainError | None]:
            tensors, bag = model.to_tensors(micro), MetricBag()
            out = model.log_probs(tensors)
            bag.merge(
                measured_policy(
                    out, tensors, algorithm=self._algorithm, passes=passes, compared=compared
                )
            )
            try:
                found = measured_loss(
                    out, tensors, algorithm=self._algorithm, counts=part.counts, passes=passes
                )
            except TrainError as error:  # recording boundary: no row here has a gradient
                return bag, error
            bag.merge(found)
            return bag, None

        whole = MetricBag()
        for bag, error in self._backend.run_each(part.micro_batches, ask):
            whole.merge(bag)
            if error is not None:
                self._warn(error)
        return whole

    def _warn(self, error: TrainError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "metrics of the policy loss leave out the rows that are not trained, training goes "
                "on; given such rows, without an advantage: %s",
                error,
            )
