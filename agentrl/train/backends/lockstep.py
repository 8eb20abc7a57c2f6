"""Common part of the backends that shard a model: every pass of one rank is a pass of all.

    every rank    log_probs     asks whether all go on, gathers the parts of the model, forward
                  backward      asks whether all go on, gathers, backward, sums gradients over ranks
                  step          each its own part

A rank that has no rows left computes padding, and one that failed is noticed by the others before
their next pass instead of at the time limit of a collective.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.batch.records import MicroBatch, PackedBatch
from agentrl.batch.tensors import TensorBatch, to_tensors
from agentrl.config.schema import TrainSection
from agentrl.machine.allocator import keep_freed_memory, return_freed_memory
from agentrl.models.parts import device_of
from agentrl.models.proof import ModelProof
from agentrl.train.backends.agreement import check_same_weights, go_on_together
from agentrl.train.backends.contract import ModelPasses, Result
from agentrl.train.backends.ranks import Ranks
from agentrl.train.backends.shares import padded, share
from agentrl.train.backends.torch_backend import RESPONSE_MASK, exact_passes
from agentrl.train.model.image_rows import tower_passes
from agentrl.train.model.logprobs import (
    LossOf,
    TokenLogProbs,
    of_tensors,
    packed_log_probs,
)
from agentrl.train.model.lora import has_adapters, merged_parameters, persistent_buffers
from agentrl.train.model.proof import ProofRows, find_reading, probe_numbers
from agentrl.train.model.recompute import recompute_layers
from agentrl.train.model.value_head import ValueModel


class Whole(nn.Module):
    """All that a pass runs, in one forward call, so that the head's weights are there, too."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: TensorBatch | ProofRows | Callable[[], None]) -> Any:
        """`TokenLogProbs.tensors()`, since libraries look for tensors in tuples; values of a value
        model; or whatever else is to be done while the weights are there."""
        if isinstance(batch, ProofRows):
            return (probe_numbers(self.model, batch),)
        if not isinstance(batch, TensorBatch):
            batch()
            return ()
        if isinstance(self.model, ValueModel):
            return self.model(batch)
        return packed_log_probs(self.model, batch).tensors()


def with_tower_passes(
    gather: Callable[[Any], list[Any]], model: Any, batch: TensorBatch
) -> TensorBatch:
    """The batch of a pass that every rank is about to make, with the tower's passes of all ranks.

    Raises:
        TrainError: a rank has failed, or has no more to compute.
        DataError: an image of this rank cannot be read.
    """
    own = tower_passes(model, batch)
    most = go_on_together(gather, tower_passes=own)
    return replace(batch, blank_passes=most - own)


class LockstepBackend(ABC):
    """Base of `TrainBackend`s whose ranks hold parts of one model."""

    lockstep = True
    holds_whole = False
    proof: ModelProof | None = None

    def __init__(
        self,
        model: Any,
        *,
        train: TrainSection,
        gradient_checkpointing: bool | int,
        ranks: Ranks,
        mask_keys: tuple[str, ...] = RESPONSE_MASK,
    ) -> None:
        """Take part; returns when every rank does.

        Args:
            model: a `transformers` causal language model or a `ValueModel`, the same on every rank,
                whole or in parts. It is taken apart: from now on the backend alone can run it.
            train: the optimizer.
            gradient_checkpointing: layers that recompute activations (`recompute_layers`).
            ranks: joined already; closed by the caller.
            mask_keys: masks whose tokens the loss looks at.

        Raises:
            TrainError: the ranks hold different weights.
        """
        params = dict(model.named_parameters())
        first = next(iter(params.values()))
        self._model, self._train, self._ranks = model, train, ranks
        self._whole: nn.Module = Whole(model)
        self._device, self.dtype = device_of(model), first.dtype
        if self._device.type == "cpu":
            return_freed_memory()
        self._checkpointing = gradient_checkpointing
        self._adapted = has_adapters(model)
        self.rank, self.world_size = ranks.rank, ranks.world_size
        self.mask_keys = mask_keys
        recompute_layers(model, gradient_checkpointing)
        check_same_weights(self.gather, params)
        ranks.open_global_group()

    @abstractmethod
    def _forward(self, batch: TensorBatch | ProofRows | Callable[[], None]) -> Any:
        """The output of `self._whole` under the library that holds the parts."""

    @torch.no_grad()
    def find_reading(self, *, who: str) -> None:
        """`find_reading` on a model that came in parts, in a pass of all ranks."""
        with self._ranks.naming("gathering weights to see how the model reads rows"):
            self._forward(partial(find_reading, self._model, who=who))

    @abstractmethod
    def _backward(self, loss: Tensor) -> None:
        """Backward pass; gradients are summed over the ranks here or in `reduce_gradients`."""

    @abstractmethod
    def parameters(self, *, trained_only: bool = False) -> Iterator[tuple[str, Tensor]]:
        """`parameters` as in `TrainBackend.parameters`."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `TrainBackend`; one parameter at a time is whole, or one layer with its adapter."""
        if self._adapted:
            yield from merged_parameters(self._model, self.parameters())
        else:
            yield from self.parameters()
        yield from persistent_buffers(self._model)

    def to_tensors(self, micro: MicroBatch) -> TensorBatch:
        """`to_tensors` as in `TrainBackend.to_tensors`."""
        kind = torch.promote_types(self.dtype, torch.float32)
        return to_tensors(micro, device=self._device, dtype=kind, mask_keys=self.mask_keys)

    def running(self) -> AbstractContextManager[None]:
        """`running` as in `TrainBackend.running`."""
        return exact_passes(self._model, checkpointing=self._checkpointing)

    def log_probs(self, batch: TensorBatch, *, loss_of: LossOf | None = None) -> TokenLogProbs:
        """See `TrainBackend`; all ranks call. The head's gradient is formed in the backward pass,
        where the libraries expect it."""
        batch = with_tower_passes(self.gather, self._model, batch)
        with self._ranks.naming("gathering weights in a forward pass"):
            found = self._forward(batch)
        return of_tensors(found)

    def values(self, batch: TensorBatch) -> Tensor:
        """See `TrainBackend`; all ranks call."""
        batch = with_tower_passes(self.gather, self._model, batch)
        with self._ranks.naming("gathering weights in a forward pass of the critic"):
            return self._forward(batch)

    @torch.no_grad()
    def probe(self, probe: ProofRows) -> Tensor:
        """`probe` as in `TrainBackend.probe`."""
        with self._ranks.naming("gathering weights to compare the model with its own forward"):
            found = self._forward(probe)
        return found if isinstance(found, Tensor) else found[0]

    def backward(self, loss: Tensor) -> None:
        """See `TrainBackend`; all ranks call."""
        if self._device.type == "cpu":
            # Not when the run starts, see there.
            keep_freed_memory()
        go_on_together(self.gather)
        with self._ranks.naming("summing gradients in a backward pass"):
            self._backward(loss)

    def run_each(
        self,
        micro_batches: Sequence[MicroBatch],
        work: Callable[[ModelPasses, MicroBatch], Result],
    ) -> list[Result]:
        """`run_each` as in `TrainBackend.run_each`, one after the other: a pass is one of all."""
        return [work(self, micro) for micro in micro_batches]

    def share(self, update: PackedBatch) -> PackedBatch:
        """`share` as in `TrainBackend.share`."""
        if update.whole is not None:
            return padded(update, max(self.gather(len(update.micro_batches))))
        return share(update, self.rank, self.world_size, lockstep=True)

    def gather(self, value: Any) -> list[Any]:
        """`gather` as in `TrainBackend.gather`."""
        return self._ranks.gather(value)
