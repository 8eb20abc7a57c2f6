"""One optimizer update of a fit, on any backend and any number of ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from agentrl.batch.records import MicroBatch, PackedBatch
from agentrl.config.training import TrainSection
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.agreement import check_shares, on_every_rank
from agentrl.train.backends.contract import ModelPasses, TrainBackend
from agentrl.train.checkpoint import HeldState, hold_state, load_trainer_state, new_run_id
from agentrl.train.gradients import finite_norm
from agentrl.train.optim.schedule import learning_rate
from agentrl.train.policy_gradient import MicroBatchProgress
from agentrl.train.saving.snapshot import StateSnapshot

Listener = Callable[[int, int], None]
"""Called with micro-batches done, and micro-batches of the update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroLoss:
    """The loss of one micro-batch, and what was counted on the way."""

    loss: Tensor
    """Scalar with a graph; the loss of an update is the sum over its micro-batches."""
    metrics: MetricBag
    """Counts over its examples."""


class FitLoss(Protocol):
    """An objective: what a micro-batch of examples costs."""

    @property
    def needs_totals(self) -> bool:
        """True if `micro_loss` needs the numbers of the whole update from `totals`."""
        ...

    def micro_loss(
        self, model: ModelPasses, micro: MicroBatch, totals: Sequence[float]
    ) -> MicroLoss:
        """Forward pass and loss of a micro-batch; `totals` is empty where none are needed.

        Raises:
            TrainError: a number that is not finite; names the rows.
        """
        ...

    def totals(self, model: ModelPasses, micro: MicroBatch) -> tuple[float, ...]:
        """Sums over a micro-batch that add up to those of the update; without gradients.

        The micro-batches are those of `measured` in `Fitter.step`, or of the update itself.
        """
        ...

    def derive(self, metrics: MetricBag) -> None:
        """Add metrics that follow from others, once those of all ranks are merged."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _FitPass:
    """Forward and backward of the micro-batches of one rank."""

    name: ClassVar[str] = "model"
    backend: TrainBackend
    loss: FitLoss
    totals: tuple[float, ...]
    progress: MicroBatchProgress | None = None

    def accumulate(self, part: PackedBatch, metrics: MetricBag) -> float:
        """Add the gradient of `part`, and return its share of the loss."""

        def compute(model: ModelPasses, micro: MicroBatch) -> tuple[float, MetricBag]:
            found = self.loss.micro_loss(model, micro, self.totals)
            model.backward(found.loss)
            if self.progress is not None:
                self.progress.advance()
            return float(found.loss.detach()), found.metrics

        total = 0.0
        for loss, bag in self.backend.run_each(part.micro_batches, compute):
            metrics.merge(bag)
            total += loss
        return total


class Fitter:
    """Owns the optimizer; changes the weights of the backend's model in place.

    All ranks make the same calls with the same updates and get the same metrics.
    """

    def __init__(
        self, backend: TrainBackend, loss: FitLoss, *, train: TrainSection, prefix: str
    ) -> None:
        """Prepare training.

        Args:
            backend: runs the model.
            loss: the objective.
            train: the optimizer; `steps` is the number of steps of the whole fit.
            prefix: of the name of the loss among the metrics, as in `sft/loss`.
        """
        self.backend = backend
        """Model, optimizer and ranks; its calls are collective."""
        self._loss = loss
        self._train = train
        self._prefix = prefix
        self._version = 0
        self._run_id = new_run_id(self.backend.gather)

    @property
    def version(self) -> int:
        """Number of steps that are done."""
        return self._version

    def step(
        self,
        update: PackedBatch,
        on_progress: Listener | None = None,
        *,
        measured: PackedBatch | None = None,
    ) -> MetricBag:
        """Make one update. Blocks; afterwards the model holds the new weights.

        Args:
            update: the examples of all ranks.
            on_progress: called as micro-batches are done.
            measured: rows that `FitLoss.totals` is asked of first; None takes those of `update`.

        Raises:
            TrainError: a number or gradient that is not finite, named; no weight has moved.
        """
        began = time.perf_counter()
        part = self._share(update)
        asked = part if measured is None else self._share(measured)
        metrics, counted = MetricBag(), MetricBag()
        with self.backend.running():
            work = _FitPass(
                backend=self.backend,
                loss=self._loss,
                totals=self._totals(asked),
                progress=MicroBatchProgress(on_progress, len(part.micro_batches)),
            )
            self.backend.clear_gradients()
            losses = on_every_rank(self.backend, lambda: work.accumulate(part, counted))
            norm = finite_norm(work, update, part, whole_rollouts=True)
            rate = learning_rate(self._version, self._train)
            self.backend.step(learning_rate=rate, grad_norm=norm)
        self._version += 1
        self._finish(metrics, counted, losses)
        metrics.mean("train/grad_norm", norm)
        metrics.mean("train/learning_rate", rate)
        metrics.sum("fit/examples", update.global_sequences)
        metrics.sum("fit/tokens", update.num_tokens)
        seconds = time.perf_counter() - began
        metrics.mean("train/tokens_per_second", update.num_tokens, count=seconds)
        return metrics

    @torch.no_grad()
    def evaluate(self, update: PackedBatch, measured: PackedBatch | None = None) -> MetricBag:
        """Measure the objective over data that is not trained on, as one update; weights stay.

        Args:
            update: as for `step`.
            measured: as for `step`.
        """
        part = self._share(update)
        asked = part if measured is None else self._share(measured)
        metrics, counted = MetricBag(), MetricBag()
        with self.backend.running():
            totals = self._totals(asked)
            losses = on_every_rank(self.backend, lambda: self._measure(part, totals, counted))
        self._finish(metrics, counted, losses)
        return metrics

    def hold(self, snapshot: StateSnapshot, *, alone: bool = False) -> HeldState:
        """Hold this rank's part of optimizer and masters as they are now.

        Args:
            snapshot: holds them.
            alone: all of it, where the other ranks are gone; else all ranks call.
        """
        return hold_state(
            snapshot,
            version=self._version,
            run_id=self._run_id,
            rank=self.backend.rank,
            world_size=1 if alone else self.backend.world_size,
            optimizer=self.backend.own_state(alone=alone),
        )

    def save(self, directory: Path) -> None:
        """Hold and write this rank's part of what `load` reads; all ranks call."""
        self.hold(StateSnapshot()).write(directory)
        self.backend.gather(None)

    def load(self, directory: Path) -> None:
        """Go on where `save` left off.

        Raises:
            RunError: there is no trainer state, or it is of another model.
        """
        state = load_trainer_state(directory, whole=self.backend.rank == 0)
        if state.optimizer:  # else weights alone, of a fit that has no step left
            self.backend.load_state_dict(state.optimizer)
        self._version = state.version
        state.restore_random_state()

    def _share(self, update: PackedBatch) -> PackedBatch:
        part = self.backend.share(update)
        check_shares(self.backend, [update], [part])
        return part

    @torch.no_grad()
    def _totals(self, part: PackedBatch) -> tuple[float, ...]:
        """Sums over the whole update, where the loss of an example depends on all others."""
        if not self._loss.needs_totals:
            return ()
        own = on_every_rank(
            self.backend, lambda: self.backend.run_each(part.micro_batches, self._loss.totals)
        )
        every = [sums for of_rank in own for sums in of_rank]
        return tuple(map(sum, zip(*every, strict=True)))

    def _measure(self, part: PackedBatch, totals: tuple[float, ...], metrics: MetricBag) -> float:
        def compute(model: ModelPasses, micro: MicroBatch) -> tuple[float, MetricBag]:
            found = self._loss.micro_loss(model, micro, totals)
            return float(found.loss), found.metrics

        total = 0.0
        for loss, bag in self.backend.run_each(part.micro_batches, compute):
            metrics.merge(bag)
            total += loss
        return total

    def _finish(self, metrics: MetricBag, counted: MetricBag, losses: Sequence[float]) -> None:
        """Merge what the ranks have counted."""
        for bag in self.backend.gather(counted):
            metrics.merge(bag)
        self._loss.derive(metrics)
        metrics.mean(f"{self._prefix}/loss", sum(losses))
