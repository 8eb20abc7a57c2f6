"""One training step: forward, loss, backward, update; the algorithm in the order it happens."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.batch.packing import unpack
from agentrl.batch.records import MicroBatch, PackedBatch, RowKey, StepBatch
from agentrl.batch.tensors import TensorBatch
from agentrl.config.schema import AlgorithmSection, TrainSection
from agentrl.errors import TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.train.backend import TrainBackend
from agentrl.train.checkpoint import load_trainer_state, save_trainer_state
from agentrl.train.losses import entropy_metrics, policy_loss, sampler_metrics
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
    ) -> None:
        """Prepare training.

        Args:
            model: a `transformers` causal language model, on its device, in its dtype.
            train: the optimizer.
            algorithm: resolved.
            temperature: what the rows must have been sampled at; None takes each row's word.
            gradient_checkpointing: recompute activations in the backward pass.
            backend: who runs the model; default this process.
        """
        self._train = train
        self._algorithm = algorithm
        self._temperature = temperature
        self._backend = backend or TorchBackend(
            model, train=train, gradient_checkpointing=gradient_checkpointing
        )
        self._version = 0

    @property
    def version(self) -> int:
        """Steps done, which is also the version of the weights."""
        return self._version

    def step(
        self, batch: StepBatch, on_progress: Callable[[int, int], None] | None = None
    ) -> MetricBag:
        """Train on one step's rollouts. Blocks; afterwards the model holds the new weights.

        Args:
            batch: from `build_step`.
            on_progress: called with `(micro-batches done, micro-batches of the step)`.

        Raises:
            TrainError: a log-probability or gradient that is not finite; names the rows. The
                update at hand is given up, its weights are as they were before it.
        """
        began = time.perf_counter()
        metrics = MetricBag()
        rate = learning_rate(self._version, self._train)
        total = sum(len(update.micro_batches) for update in batch.updates)
        done = 0
        with self._backend.running():
            old_log_probs = self._old_log_probs(batch)
            for index, update in enumerate(batch.updates):
                self._backend.clear_gradients()
                loss = 0.0
                for micro in update.micro_batches:
                    loss += self._accumulate(micro, old_log_probs, metrics, first=index == 0)
                    done += 1
                    if on_progress is not None:
                        on_progress(done, total)
                self._update(update, rate, loss, metrics)
        self._version += 1
        elapsed = time.perf_counter() - began
        metrics.mean("train/learning_rate", rate)
        metrics.mean("train/tokens_per_second", batch.num_tokens, count=elapsed)
        return metrics

    def _accumulate(
        self,
        micro: MicroBatch,
        old_log_probs: dict[RowKey, Tensor] | None,
        metrics: MetricBag,
        *,
        first: bool,
    ) -> float:
        """Forward and backward of one micro-batch; returns its share of the update's loss."""
        self._check_temperature(micro)
        tensors = self._backend.to_tensors(micro)
        out = self._backend.log_probs(tensors)
        log_probs = out.log_probs_R
        _check_finite(log_probs, micro)
        sums = policy_loss(
            log_probs,
            old_log_probs_R=self._ratio_base(micro, tensors, log_probs, old_log_probs),
            advantages_R=tensors.advantages_R,
            weights_R=tensors.weights_R,
            mask_R=tensors.mask_R,
            eps_clip_low=self._algorithm.eps_clip_low,
            eps_clip_high=self._algorithm.eps_clip_high,
        )
        self._backend.backward(sums.loss)
        metrics.merge(sums.metrics)
        metrics.merge(entropy_metrics(out.entropy_R, tensors.mask_R))
        if first:
            # Later updates see a policy that has moved: that is no gap between the two programs.
            log_probs = log_probs.detach()
            metrics.merge(sampler_metrics(log_probs, tensors.rollout_log_probs_R, tensors.mask_R))
        return float(sums.loss.detach())

    def _ratio_base(
        self,
        micro: MicroBatch,
        tensors: TensorBatch,
        log_probs: Tensor,
        old_log_probs: dict[RowKey, Tensor] | None,
    ) -> Tensor:
        if self._algorithm.old_log_probs == "rollout":
            return tensors.rollout_log_probs_R
        if old_log_probs is None:
            return log_probs.detach()
        return torch.cat([old_log_probs[key] for key in micro.rows]).to(log_probs.device)

    def _old_log_probs(self, batch: StepBatch) -> dict[RowKey, Tensor] | None:
        """Log-probabilities before the first update, by row, where a pass of its own is needed.

        With a single update the policy that is differentiated is the old policy itself.
        """
        if self._algorithm.old_log_probs == "rollout" or len(batch.updates) < 2:
            return None
        first_epoch = [update for update in batch.updates if update.epoch == 0]
        found: dict[RowKey, Tensor] = {}
        with torch.no_grad():
            for micro in (micro for update in first_epoch for micro in update.micro_batches):
                out = self._backend.log_probs(self._backend.to_tensors(micro))
                lengths = [int((micro.row_R == row).sum()) for row in range(len(micro.rows))]
                parts = out.log_probs_R.split(lengths)
                found.update(zip(micro.rows, parts, strict=True))
        return found

    def _update(self, update: PackedBatch, rate: float, loss: float, metrics: MetricBag) -> None:
        """One optimizer update; without any gradient the weights and moments stay as they are."""
        if not update.micro_batches:
            metrics.sum("train/updates_skipped", 1)
            return
        norm = self._backend.grad_norm()
        if not math.isfinite(norm):
            rows = self._rows_without_finite_gradient(update)
            self._backend.clear_gradients()
            raise TrainError(
                f"the gradient norm is {norm}; rows whose own gradient is not finite: "
                f"{', '.join(map(str, rows)) or 'none alone, only their sum'}; the update is "
                "given up and the weights are unchanged"
            )
        self._backend.step(learning_rate=rate, grad_norm=norm)
        metrics.sum("train/updates", 1)
        metrics.mean("train/loss", loss)
        metrics.mean("train/grad_norm", norm)

    def _rows_without_finite_gradient(self, update: PackedBatch) -> list[RowKey]:
        """Each row by itself, to find those that spoil the sum."""
        found = []
        for row in (row for packed in update.micro_batches for row in unpack(packed)):
            self._backend.clear_gradients()
            self._accumulate(row, None, MetricBag(), first=False)
            if not math.isfinite(self._backend.grad_norm()):
                found.append(row.rows[0])
        return found

    def _check_temperature(self, micro: MicroBatch) -> None:
        wanted = self._temperature
        if wanted is None:
            return
        for key, found in zip(micro.rows, micro.temperature_S, strict=True):
            if found != wanted:
                raise TrainError(
                    f"row {key} was sampled at temperature {found}, the trainer expects {wanted}"
                )

    def save(self, directory: Path) -> None:
        """Write optimizer, masters, version and torch's random state into `directory`."""
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


def _check_finite(log_probs_R: Tensor, micro: MicroBatch) -> None:
    log_probs_R = log_probs_R.detach()
    bad = (~torch.isfinite(log_probs_R)).nonzero()[:, 0].tolist()
    if bad:
        rows = sorted({str(micro.rows[micro.row_R[index]]) for index in bad})
        raise TrainError(
            f"the policy gives a log-probability of {float(log_probs_R[bad[0]])} at "
            f"{len(bad)} tokens of rows {', '.join(rows)}; the update is given up and the weights "
            "are unchanged"
        )
