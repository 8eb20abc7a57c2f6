"""One training step: forward, loss, backward, update; the algorithm in the order it happens."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from agentrl.batch.packing import unpack
from agentrl.batch.records import MicroBatch, PackedBatch, RowKey, StepBatch
from agentrl.config.schema import AlgorithmSection, TrainSection
from agentrl.errors import TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.train.agreement import check_same_batch, on_every_rank
from agentrl.train.backend import TrainBackend
from agentrl.train.checkpoint import load_trainer_state, save_trainer_state
from agentrl.train.logprob_worker import (
    LogProbSource,
    LogProbWorker,
    RowLogProbs,
    check_finite,
)
from agentrl.train.objective import KnownLogProbs, objective
from agentrl.train.schedule import learning_rate
from agentrl.train.torch_backend import TorchBackend

logger = logging.getLogger(__name__)


class Trainer:
    """Owns the optimizer and the policy version; changes the weights of `model` in place.

    Not thread-safe: one `step` at a time, and nothing may sample from the model during it.
    """

    def __init__(
        self,
        model: Any,
        *,
        train: TrainSection,
        algorithm: AlgorithmSection,
        temperature: float | None = None,
        gradient_checkpointing: bool = False,
        backend: TrainBackend | None = None,
        reference: LogProbSource | None = None,
    ) -> None:
        """Prepare training.

        Args:
            model: a `transformers` causal language model, on its device, in its dtype.
            train: the optimizer.
            algorithm: resolved.
            temperature: what the rows must have been sampled at; None takes each row's word.
            gradient_checkpointing: recompute activations in the backward pass.
            backend: who runs the model; default this process.
            reference: who knows the policy that `algorithm.kl_coef` holds this one to.

        Raises:
            TrainError: a KL penalty without a reference.
        """
        if algorithm.kl_coef > 0.0 and reference is None:
            raise TrainError(
                f"algorithm.kl_coef is {algorithm.kl_coef}, but the trainer was given no reference "
                "policy; load one (load_reference), or set algorithm.kl_coef: 0"
            )
        self._train = train
        self._algorithm = algorithm
        self._temperature = temperature
        self._backend = backend or TorchBackend(
            model, train=train, gradient_checkpointing=gradient_checkpointing
        )
        self._reference = reference
        self._version = 0

    @property
    def version(self) -> int:
        """Steps done, which is also the version of the weights."""
        return self._version

    def step(
        self, batch: StepBatch, on_progress: Callable[[int, int], None] | None = None
    ) -> MetricBag:
        """Train on one step's rollouts. Blocks; afterwards the model holds the new weights.

        On several ranks every one of them is given the same batch and returns the same metrics.

        Args:
            batch: from `build_step`.
            on_progress: called with `(micro-batches done, micro-batches of the step)` of this rank.

        Raises:
            TrainError: a log-probability or gradient that is not finite; names the rows. The
                update at hand is given up, its weights are as they were before it.
        """
        began = time.perf_counter()
        check_same_batch(self._backend, batch, version=self._version)
        rate = learning_rate(self._version, self._train)
        shares = [self._backend.share(update) for update in batch.updates]
        progress = _Progress(on_progress, sum(len(part.micro_batches) for part in shares))
        tokens, updates = MetricBag(), MetricBag()
        known = self._ask_other_policies(batch, shares)
        with self._backend.running():
            for index, (update, part) in enumerate(zip(batch.updates, shares, strict=True)):
                self._backend.clear_gradients()
                losses = on_every_rank(
                    self._backend,
                    partial(
                        self._accumulate,
                        part,
                        known,
                        tokens,
                        compare_sampler=index == 0 or (update.epoch == 0 and known.old is not None),
                        progress=progress,
                    ),
                )
                self._update(update, part, known, rate, losses, updates)
        self._version += 1
        metrics = MetricBag()
        for bag in self._backend.gather(tokens):
            metrics.merge(bag)
        metrics.merge(updates)
        metrics.mean("train/learning_rate", rate)
        elapsed = time.perf_counter() - began
        metrics.mean("train/tokens_per_second", batch.num_tokens, count=elapsed)
        return metrics

    def _ask_other_policies(self, batch: StepBatch, shares: Sequence[PackedBatch]) -> KnownLogProbs:
        """What the policy before the first update and the reference think of all rows.

        The old policy needs no pass of its own while it is the policy at hand: in a step of one
        update, or where the sampler's numbers stand for it.
        """
        micros = [micro for part in shares if part.epoch == 0 for micro in part.micro_batches]
        own = self._algorithm.old_log_probs != "rollout" and len(batch.updates) > 1
        old = self._ask(LogProbWorker(self._backend, name="policy"), micros) if own else None
        ref = None
        if self._reference is not None and self._algorithm.kl_coef > 0.0:
            ref = self._ask(self._reference, micros)
        return KnownLogProbs(old=old, ref=ref)

    def _ask(self, source: LogProbSource, micros: Sequence[MicroBatch]) -> RowLogProbs:
        """Every rank asks for its share; later epochs may give it the rows of others."""
        parts = on_every_rank(self._backend, lambda: source.row_log_probs(micros))
        return {key: values for part in parts for key, values in part.items()}

    def _accumulate(
        self,
        part: PackedBatch,
        known: KnownLogProbs,
        metrics: MetricBag,
        *,
        compare_sampler: bool,
        progress: _Progress,
    ) -> _Loss:
        """Forward and backward of this rank's micro-batches; returns their share of the loss."""
        total, penalty = 0.0, 0.0
        for micro in part.micro_batches:
            self._check_temperature(micro)
            tensors = self._backend.to_tensors(micro)
            out = self._backend.log_probs(tensors)
            check_finite(out.log_probs_R, micro)
            result = objective(
                out,
                tensors,
                known.of(micro, like=out.log_probs_R),
                algorithm=self._algorithm,
                counts=part.counts,
                kl_coef=self._algorithm.kl_coef,
                compare_sampler=compare_sampler,
                loss_factor=self._backend.loss_factor,
            )
            self._backend.backward(result.loss)
            metrics.merge(result.metrics)
            total += float(result.loss.detach())
            penalty += result.penalty
            progress.advance()
        return _Loss(total=total, penalty=penalty)

    def _update(
        self,
        update: PackedBatch,
        part: PackedBatch,
        known: KnownLogProbs,
        rate: float,
        losses: Sequence[_Loss],
        metrics: MetricBag,
    ) -> None:
        """One optimizer update; without any gradient the weights and moments stay as they are."""
        if not update.micro_batches:
            metrics.sum("train/updates_skipped", 1)
            return
        self._backend.reduce_gradients()
        norm = self._backend.grad_norm()
        if not math.isfinite(norm):
            found = on_every_rank(
                self._backend, lambda: self._rows_without_finite_gradient(part, known)
            )
            self._backend.clear_gradients()
            rows = [str(row) for rows in found for row in rows]
            raise TrainError(
                f"the gradient norm is {norm}; rows whose own gradient is not finite: "
                f"{', '.join(rows) or 'none alone, only their sum'}; the update is "
                "given up and the weights are unchanged"
            )
        self._backend.step(learning_rate=rate, grad_norm=norm)
        metrics.sum("train/updates", 1)
        metrics.mean("train/loss", sum(loss.total for loss in losses))
        metrics.mean("train/grad_norm", norm)
        if self._algorithm.kl_coef > 0.0:
            metrics.mean("train/kl_loss", sum(loss.penalty for loss in losses))

    def _rows_without_finite_gradient(
        self, part: PackedBatch, known: KnownLogProbs
    ) -> list[RowKey]:
        """Each row by itself, to find those that spoil the sum."""
        found = []
        for row in (row for packed in part.micro_batches for row in unpack(packed)):
            self._backend.clear_gradients()
            alone = replace(part, micro_batches=(row,))
            self._accumulate(
                alone, known, MetricBag(), compare_sampler=False, progress=_Progress(None, 0)
            )
            if not math.isfinite(self._backend.grad_norm()):
                found.append(row.rows[0])
        return found

    def _check_temperature(self, micro: MicroBatch) -> None:
        wanted = self._temperature
        if wanted is None:
            return
        for key, found in zip(micro.rows, micro.temperature_N, strict=True):
            if found != wanted:
                raise TrainError(
                    f"row {key} was sampled at temperature {found}, the trainer expects {wanted}"
                )

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The full weights, to be sent to the engines; the same names and order on every call.

        A head that is tied to the embeddings is one parameter and comes once, under the name of the
        embeddings: loaders of tied models tie it again. Every rank may ask. The tensors are those
        that the next `step` changes: copy or send them before it.
        """
        return self._backend.weights()

    def save(self, directory: Path) -> None:
        """Write optimizer, masters, version and torch's random state into `directory`.

        Ranks of a data-parallel trainer hold the same state: one of them saves, all of them load.
        """
        save_trainer_state(directory, version=self._version, optimizer=self._backend.state_dict())

    def load(self, directory: Path) -> None:
        """Continue where `save` left off; the model takes the weights of the masters.

        Raises:
            RunError: there is no trainer state, or it is of another model.
        """
        state = load_trainer_state(directory)
        self._backend.load_state_dict(state.optimizer)
        self._version = state.version
        state.restore_random_state()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """What one rank adds to the loss of an update."""

    total: float
    """Policy term and penalty."""
    penalty: float
    """The penalty alone."""


class _Progress:
    """Counts the micro-batches of a step."""

    def __init__(self, listener: Callable[[int, int], None] | None, total: int) -> None:
        self._listener, self._total, self._done = listener, total, 0

    def advance(self) -> None:
        self._done += 1
        if self._listener is not None:
            self._listener(self._done, self._total)
