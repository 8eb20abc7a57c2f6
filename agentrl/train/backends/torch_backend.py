"""Training in this process: the CPU, or one GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from agentrl.batch.records import MicroBatch, PackedBatch
from agentrl.batch.tensors import TensorBatch, to_tensors
from agentrl.config.fleet import OffloadPart
from agentrl.config.schema import TrainSection
from agentrl.machine.allocator import keep_freed_memory, share_one_heap
from agentrl.machine.compute_threads import usable_cores
from agentrl.models.proof import ModelProof
from agentrl.train.backends.contract import ModelPasses, Result, compensation
from agentrl.train.backends.lanes import in_lanes, lane_count, sharing_copy
from agentrl.train.backends.shares import assign
from agentrl.train.model.adapters.dropout import draw_masks, masked_log_probs, masked_values
from agentrl.train.model.attention import packed_attention, reading_of_model
from agentrl.train.model.logprobs import LossOf, TokenLogProbs, packed_log_probs
from agentrl.train.model.lora import merged_weights
from agentrl.train.model.proof import ProofRows, probe_numbers
from agentrl.train.model.recompute import recompute_layers
from agentrl.train.optim.choose import make_optimizer
from agentrl.train.optim.gradient_sums import GradientSums
from agentrl.train.saving.own_part import OwnPart, by_kind, share_of_copies

logger = logging.getLogger(__name__)

RESPONSE_MASK = ("response_mask",)
"""Mask of most losses: tokens that the policy sampled."""


class TorchPasses:
    """The passes of one model, or of one copy of it among several that share their weights."""

    def __init__(self, model: Any, *, mask_keys: tuple[str, ...]) -> None:
        self._model = model
        self.mask_keys = mask_keys
        self.loss_factor = compensation(data_parallel_size=1, averages_over_ranks=False)

    @property
    def dtype(self) -> torch.dtype:
        """`dtype` as in `ProvenPasses.dtype`."""
        return next(self._model.parameters()).dtype

    def to_tensors(self, micro: MicroBatch) -> TensorBatch:
        """`to_tensors` as in `TrainBackend.to_tensors`."""
        param = next(self._model.parameters())
        kind = torch.promote_types(param.dtype, torch.float32)
        return to_tensors(micro, device=param.device, dtype=kind, mask_keys=self.mask_keys)

    def log_probs(self, batch: TensorBatch, *, loss_of: LossOf | None = None) -> TokenLogProbs:
        """`log_probs` as in `TrainBackend.log_probs`."""

        def run(loss_of: LossOf | None) -> TokenLogProbs:
            return packed_log_probs(self._model, batch, loss_of=loss_of)

        if torch.is_grad_enabled() and draw_masks(self._model, batch):
            return masked_log_probs(run, loss_of)
        return run(loss_of)

    def values(self, batch: TensorBatch) -> Tensor:
        """`values` as in `TrainBackend.values`."""
        if torch.is_grad_enabled() and draw_masks(self._model, batch):
            return masked_values(lambda: self._model(batch))
        return self._model(batch)

    def probe(self, probe: ProofRows) -> Tensor:
        """`probe` as in `ProvenPasses.probe`."""
        return probe_numbers(self._model, probe)

    def backward(self, loss: Tensor) -> None:
        """`backward` as in `TrainBackend.backward`."""
        (loss * self.loss_factor).backward()


class PassesOfCopy(TorchPasses):
    """The passes of a copy that shares the weights of a model and sums its own gradients."""

    def __init__(self, model: Any, *, mask_keys: tuple[str, ...]) -> None:
        # The config is shared: a copy that tried its reading in a lane would switch the attention
        # of the others while they compute.
        reading_of_model(model)
        self.model = sharing_copy(model)
        """Has parameters of its own over the same memory."""
        super().__init__(self.model, mask_keys=mask_keys)
        params = self.model.named_parameters()
        self.sums = GradientSums({name: param for name, param in params if param.requires_grad})
        """Gradients of this copy alone."""

    def share_weights_of(self, model: Any) -> None:
        """Look where the weights are now: a parameter may have been given other memory."""
        for own, param in zip(self.model.parameters(), model.parameters(), strict=True):
            if own.data_ptr() != param.data_ptr():
                own.data = param.data


class TorchBackend(TorchPasses):
    """A `TrainBackend` of one rank. The model stays in evaluation mode: nothing is dropped out."""

    rank = 0
    world_size = 1
    lockstep = False
    holds_whole = True
    proof: ModelProof | None = None

    def __init__(
        self,
        model: Any,
        *,
        train: TrainSection,
        gradient_checkpointing: bool | int,
        mask_keys: tuple[str, ...] = RESPONSE_MASK,
        lanes: int | None = None,
    ) -> None:
        """Take the model over.

        Args:
            model: a `transformers` causal language model or a `ValueModel`.
            train: the optimizer.
            gradient_checkpointing: layers that recompute activations (`recompute_layers`).
            mask_keys: masks whose tokens the loss looks at.
            lanes: micro-batches that are computed at once; None leaves it to `lane_count`.
        """
        super().__init__(model, mask_keys=mask_keys)
        self._max_grad_norm = train.max_grad_norm
        self._checkpointing = gradient_checkpointing
        self._optimizer = make_optimizer(model, train)
        if next(model.parameters()).device.type == "cpu":
            keep_freed_memory()
        recompute_layers(model, gradient_checkpointing)
        count, self._cores = lane_count(model, lanes), usable_cores()
        if count > 1:
            share_one_heap()
            logger.info("training in %d lanes over %d cores", count, self._cores)
        self._copies = [PassesOfCopy(model, mask_keys=mask_keys) for _ in range(count - 1)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """`running` as in `TrainBackend.running`."""
        with ExitStack() as stack:
            for model in (self._model, *(copied.model for copied in self._copies)):
                stack.enter_context(exact_passes(model, checkpointing=self._checkpointing))
            yield

    def run_each(
        self,
        micro_batches: Sequence[MicroBatch],
        work: Callable[[ModelPasses, MicroBatch], Result],
    ) -> list[Result]:
        """`run_each` as in `TrainBackend.run_each`."""
        for copied in self._copies:
            copied.share_weights_of(self._model)
        lanes: list[ModelPasses] = [self, *self._copies]
        results = in_lanes(lanes, micro_batches, work, cores=self._cores)
        for copied in self._copies:
            self._optimizer.sums.add(copied.sums)
        return results

    def clear_gradients(self) -> None:
        """`clear_gradients` as in `TrainBackend.clear_gradients`."""
        self._optimizer.clear()
        for copied in self._copies:
            copied.sums.clear()

    def share(self, update: PackedBatch) -> PackedBatch:
        """`share` as in `TrainBackend.share`; in pieces that keep all lanes busy."""
        if not self._copies:
            return update
        lanes = assign(update.micro_batches, 1 + len(self._copies))
        return replace(update, micro_batches=tuple(micro for lane in lanes for micro in lane))

    def gather(self, value: Any) -> list[Any]:
        """`gather` as in `TrainBackend.gather`."""
        return [value]

    def reduce_gradients(self) -> None:
        """`reduce_gradients` as in `TrainBackend.reduce_gradients`."""

    def grad_norm(self) -> float:
        """`grad_norm` as in `TrainBackend.grad_norm`."""
        return self._optimizer.grad_norm()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Summed gradient of every parameter that has one."""
        return self._optimizer.gradients()

    def step(self, *, learning_rate: float, grad_norm: float) -> None:
        """`step` as in `TrainBackend.step`."""
        self._optimizer.step(
            learning_rate=learning_rate, max_grad_norm=self._max_grad_norm, grad_norm=grad_norm
        )

    def state_on_device(self) -> Mapping[OffloadPart, Iterable[Tensor]]:
        """Tensors by the switch that moves them between two steps."""
        return {
            "optimizer": self._optimizer.own_tensors(),
            "gradients": self._optimizer.sums.held(),
            "weights": (*self._model.parameters(), *self._model.buffers()),
        }

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """`weights` as in `TrainBackend.weights`."""
        yield from merged_weights(self._model)

    def parameters(self, *, trained_only: bool = False) -> Iterator[tuple[str, Tensor]]:
        """`parameters` as in `TrainBackend.parameters`."""
        for name, param in self._model.named_parameters():
            if param.requires_grad or not trained_only:
                yield name, param.detach()

    def state_dict(self) -> dict[str, Any]:
        """`state_dict` as in `TrainBackend.state_dict`."""
        return self._optimizer.state_dict()

    def own_state(self, *, alone: bool = False) -> Iterator[OwnPart]:
        """`own_state` as in `TrainBackend.own_state`."""
        rank, world_size = (0, 1) if alone else (self.rank, self.world_size)
        for kind, tensors in by_kind(self._optimizer.state_dict()).items():
            yield from share_of_copies(kind, tensors, rank=rank, world_size=world_size)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """`load_state_dict` as in `TrainBackend.load_state_dict`."""
        self._optimizer.load_state_dict(state)


@contextmanager
def exact_passes(model: Any, *, checkpointing: bool | int) -> Iterator[None]:
    """Inside, packed rows go through the model and nothing is dropped out.

    Layers recompute their activations in training mode only. They alone are in that mode, without
    what they would drop out: routers and attentions of some families draw numbers in it, too.
    """
    was_training = model.training
    model.eval()
    again = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    again = again if checkpointing else []
    # Falcon's layers read the rate in their config.
    holders = [*again, *{id(c): c for m in again if (c := getattr(m, "config", None))}.values()]
    rates = [
        (holder, name, rate)
        for holder in holders
        for name, rate in vars(holder).items()
        if "drop" in name and isinstance(rate, float)
    ]
    for module in again:
        module.training = True
    for holder, name, _ in rates:
        setattr(holder, name, 0.0)
    try:
        with packed_attention(model):
            yield
    finally:
        for holder, name, rate in rates:
            setattr(holder, name, rate)
        model.train(was_training)
