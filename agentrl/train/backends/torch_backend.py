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
"""Mask of most losses: tokens that the policy sampled."""


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
        """`to_tensors` as in `TrainBackend.to_tensors`."""
        param = next(self._model.parameters())
        kind = torch.promote_types(param.dtype, torch.float32)
        return to_tensors(micro, device=param.device, dtype=kind, mask_keys=self.mask_keys)

    def running(self) -> AbstractContextManager[None]:
        """`running` as in `TrainBackend.running`."""
        return exact_passes(self._model, checkpointing=self._checkpointing)

    def log_probs(self, batch: TensorBatch, *, loss_of: LossOf | None = None) -> TokenLogProbs:
        """`log_probs` as in `TrainBackend.log_probs`."""
        return packed_log_probs(self._model, batch, loss_of=loss_of)

    def values(self, batch: TensorBatch) -> Tensor:
        """`values` as in `TrainBackend.values`."""
        return self._model(batch)

    def backward(self, loss: Tensor) -> None:
        """`backward` as in `TrainBackend.backward`."""
        (loss * self.loss_factor).backward()

    def clear_gradients(self) -> None:
        """`clear_gradients` as in `TrainBackend.clear_gradients`."""
        self._optimizer.clear()

    def share(self, update: PackedBatch) -> PackedBatch:
        """`share` as in `TrainBackend.share`."""
        return update

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

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """`weights` as in `TrainBackend.weights`."""
        yield from merged_weights(self._model)

    def state_dict(self) -> dict[str, Any]:
        """`state_dict` as in `TrainBackend.state_dict`."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """`load_state_dict` as in `TrainBackend.load_state_dict`."""
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
