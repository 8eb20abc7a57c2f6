"""State of a trainer that leaves its device while engines sample, and comes back bit for bit.

A tensor that moves stays the same object: who holds it finds its numbers in main memory meanwhile,
so checkpoints are written from there. Main memory is page-locked where there is CUDA, and is kept
for the next time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from agentrl.config.fleet import OffloadPart
from agentrl.errors import ConfigError, TrainError
from agentrl.train.backends.contract import TrainBackend
from agentrl.train.backends.torch_backend import TorchBackend

logger = logging.getLogger(__name__)


class HasState(Protocol):
    """A trainer that lists its tensors on the device."""

    def state_on_device(self) -> Mapping[OffloadPart, Iterable[Tensor]]:
        """Tensors by the switch that moves them; asked anew each time."""
        ...


class ModelState:
    """A model without a trainer: its weights are all of its state."""

    def __init__(self, model: nn.Module) -> None:
        """Take the model."""
        self._model = model

    def state_on_device(self) -> Mapping[OffloadPart, Iterable[Tensor]]:
        """Parameters and buffers of the model."""
        return {"weights": (*self._model.parameters(), *self._model.buffers())}


def state_on_device(
    backend: TrainBackend, *, critic: TrainBackend | None, beside: Iterable[object]
) -> Mapping[OffloadPart, list[Tensor]]:
    """Tensors of a trainer by the switch that moves them.

    Args:
        backend: of the policy.
        critic: its backend; None where there is none.
        beside: reference and teacher, those of them that are models here.

    Raises:
        ConfigError: a backend that has an offload of its own.
    """
    found: dict[OffloadPart, list[Tensor]] = {
        part: list(held) for part, held in _state_of(backend).items()
    }
    policy = {id(tensor) for tensor in found["weights"]}
    others: list[Tensor] = []
    if critic is not None:
        state = _state_of(critic)
        others += [*state["optimizer"], *state["weights"]]
        found["gradients"] += state["gradients"]
    for model in beside:
        own: Callable[[], Iterable[Tensor]] | None = getattr(model, "own_tensors", None)
        others += [] if own is None else own()
    found["optimizer"] += [tensor for tensor in others if id(tensor) not in policy]
    return found


def _state_of(backend: TrainBackend) -> Mapping[OffloadPart, Iterable[Tensor]]:
    if isinstance(backend, TorchBackend):
        return backend.state_on_device()
    raise ConfigError(
        f"{type(backend).__name__} cannot leave its device between two steps: it has an offload of "
        "its own (train.backend.offload: true), which keeps parameters and optimizer in main memory"
    )


class TrainerOffload:
    """Moves parts of a trainer to main memory and back; see `agentrl.runtime.colocated.turns`."""

    def __init__(
        self, trainer: HasState, parts: Collection[OffloadPart], *, device: torch.device
    ) -> None:
        """Take a trainer whose state is on `device`.

        Args:
            trainer: says what there is.
            parts: that move.
            device: what is elsewhere stays there.
        """
        self._trainer, self._parts, self._device = trainer, frozenset(parts), device
        self._away: list[Tensor] = []
        self._hosts: dict[int, Tensor] = {}
        """Main memory of the last time, by the object that it was for."""

    @property
    def away_bytes(self) -> int:
        """Bytes that are in main memory now."""
        return sum(tensor.nbytes for tensor in self._away)

    @torch.no_grad()
    def put_aside(self) -> None:
        """Move the parts to main memory. Does nothing to what is there already."""
        found = {
            id(tensor): tensor
            for part, tensors in self._trainer.state_on_device().items()
            if part in self._parts
            for tensor in tensors
            if tensor.device == self._device and tensor.numel()
        }
        known = {id(tensor) for tensor in self._away}
        going = [tensor for key, tensor in found.items() if key not in known]
        hosts = [self._host(tensor) for tensor in going]
        for tensor, host in zip(going, hosts, strict=True):
            host.copy_(tensor, non_blocking=True)
        _synchronize(self._device)
        for tensor, host in zip(going, hosts, strict=True):
            tensor.data = host
        self._away += going
        self._hosts = {id(tensor): tensor.data for tensor in self._away}
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        logger.info("%.2f GiB of the trainer are in main memory", self.away_bytes / 2**30)

    @torch.no_grad()
    def bring_back(self) -> None:
        """Move everything back to the device.

        Raises:
            TrainError: the device has no room for it; what has come back stays there.
        """
        wanted = self.away_bytes
        try:
            while self._away:
                tensor = self._away[-1]
                host = tensor.data
                tensor.data = self._fresh(host).copy_(host, non_blocking=True)
                self._away.pop()
        except torch.OutOfMemoryError as error:
            raise TrainError(
                f"the trainer takes {wanted / 2**30:.2f} GiB back to {self._device}, and the last "
                f"{self.away_bytes / 2**30:.2f} GiB find no room there: {error}. End what else "
                "uses the device, lower train.micro_batch_tokens, or train adapters (train.lora)"
            ) from error
        _synchronize(self._device)

    def _fresh(self, host: Tensor) -> Tensor:
        """Memory of the device for what is in main memory."""
        return torch.empty_like(host, device=self._device)

    def _host(self, tensor: Tensor) -> Tensor:
        """Main memory for a tensor: that of the last time if it fits."""
        kept = self._hosts.get(id(tensor))
        if kept is not None and kept.shape == tensor.shape and kept.dtype == tensor.dtype:
            return kept
        pinned = self._device.type == "cuda"
        return torch.empty_like(tensor, device="cpu", pin_memory=pinned, requires_grad=False)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
