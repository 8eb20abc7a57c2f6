"""Training in this process: the CPU, or one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.batch.records import MicroBatch, PackedBatch
from agentrl.batch.tensors import TensorBatch, to_tensors
from agentrl.config.schema import TrainSection
from agentrl.train.backends.contract import compensation
from agentrl.train.model.allocator import keep_freed_memory
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.logprobs import LossOf, TokenLogProbs, packed_log_probs
from agentrl.train.model.lora import merged_weights
from agentrl.train.optim.choose import make_optimizer

RESPONSE_MASK = ("response_mask",)
"""What most losses look at: tokens that the policy sampled."""


class TorchBackend:
    """A `TrainBackend` of one rank. The model stays in evaluation mode: nothing is dropped out."""

    rank = 0
    world_size = 1
    lockstep = False

    def __init__(
        self,
        model: Any,
        *,
        train: TrainSection,
        gradient_checkpointing: bool,
        mask_keys: tuple[str, ...] = RESPONSE_MASK,
    ) -> None:
        self._model = model
        self.mask_keys = mask_keys
        self._max_grad_norm = train.max_grad_norm
        self._checkpointing = gradient_checkpointing
        self._optimizer = make_optimizer(model, train)
        self.loss_factor = compensation(data_parallel_size=1, averages_over_ranks=False)
        if next(model.parameters()).device.type == "cpu":
            keep_freed_memory()
        if gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})

    def to_tensors(self, micro: MicroBatch) -> TensorBatch:
        """Do what `TrainBackend.to_tensors` says."""
        param = next(self._model.parameters())
        kind = torch.promote_types(param.dtype, torch.float32)
        return to_tensors(micro, device=param.device, dtype=kind, mask_keys=self.mask_keys)

    def running(self) -> AbstractContextManager[None]:
        """Do what `TrainBackend.running` says."""
        return exact_passes(self._model, checkpointing=self._checkpointing)

    def log_probs(self, batch: TensorBatch, *, loss_of: LossOf | None = None) -> TokenLogProbs:
        """Do what `TrainBackend.log_probs` says."""
        return packed_log_probs(self._model, batch, loss_of=loss_of)

    def backward(self, loss: Tensor) -> None:
        """Do what `TrainBackend.backward` says."""
        (loss * self.loss_factor).backward()

    def clear_gradients(self) -> None:
        """Do what `TrainBackend.clear_gradients` says."""
        self._optimizer.clear()

    def share(self, update: PackedBatch) -> PackedBatch:
        """Do what `TrainBackend.share` says."""
        return update

    def gather(self, value: Any) -> list[Any]:
        """Do what `TrainBackend.gather` says."""
        return [value]

    def reduce_gradients(self) -> None:
        """Do what `TrainBackend.reduce_gradients` says."""

    def grad_norm(self) -> float:
        """Do what `TrainBackend.grad_norm` says."""
        return self._optimizer.grad_norm()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Summed gradient of every parameter that has one."""
        return self._optimizer.gradients()

    def step(self, *, learning_rate: float, grad_norm: float) -> None:
        """Do what `TrainBackend.step` says."""
        self._optimizer.step(
            learning_rate=learning_rate, max_grad_norm=self._max_grad_norm, grad_norm=grad_norm
        )

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Do what `TrainBackend.weights` says."""
        yield from merged_weights(self._model)

    def state_dict(self) -> dict[str, Any]:
        """Do what `TrainBackend.state_dict` says."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do what `TrainBackend.load_state_dict` says."""
        self._optimizer.load_state_dict(state)


@contextmanager
def exact_passes(model: Any, *, checkpointing: bool) -> Iterator[None]:
    """Inside, packed rows go through the model and nothing is dropped out.

    Checkpointing works in training mode only, so it is switched on then.
    """
    was_training = model.training
    model.train(checkpointing)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    try:
        with packed_attention(model):
            yield
    finally:
        model.train(was_training)
