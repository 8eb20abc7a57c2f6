"""FSDP2: every rank holds a slice of each parameter, its gradient and its optimizer state.

`shard_model` divides the model. What is stored between steps are float32 slices; passes gather them
in the model's own dtype, and gradients are summed in float32, neither averaged nor divided. The
optimizer works on the slices as on ordinary tensors: AdamW looks at each number by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from agentrl.batch.tensors import TensorBatch
from agentrl.config.schema import TrainSection
from agentrl.train.backends.contract import compensation
from agentrl.train.backends.lockstep import LockstepBackend, Whole
from agentrl.train.backends.ranks import Ranks
from agentrl.train.backends.slices import Slices, shard_model, sharded_modules
from agentrl.train.backends.torch_backend import RESPONSE_MASK
from agentrl.train.optim.optimizer import MasterAdamW, check_same_parameters


class FsdpBackend(LockstepBackend):
    """A `TrainBackend` of one rank among several, each with its slices of the model."""

    def __init__(
        self,
        model: Any,
        *,
        train: TrainSection,
        gradient_checkpointing: bool,
        ranks: Ranks,
        mask_keys: tuple[str, ...] = RESPONSE_MASK,
    ) -> None:
        """Take the same arguments as `LockstepBackend`."""
        super().__init__(
            model,
            train=train,
            gradient_checkpointing=gradient_checkpointing,
            ranks=ranks,
            mask_keys=mask_keys,
        )
        self._whole = Whole(model)
        sharding = train.backend
        assert sharding.kind == "fsdp2", sharding.kind
        with ranks.naming("cutting the model up"):
            shard_model(model, self._whole, ranks=ranks.world_size, offload=sharding.offload)
        self.loss_factor = compensation(
            data_parallel_size=ranks.world_size, averages_over_ranks=False
        )
        self._slices = Slices(model)
        self._optimizer = MasterAdamW(
            cast(nn.Module, self._slices), betas=train.betas, weight_decay=train.weight_decay
        )

    def _forward(self, batch: TensorBatch) -> tuple[Tensor, Tensor]:
        out = self._whole(batch)
        if not torch.is_grad_enabled():
            self._give_away()
        return out

    def _backward(self, loss: Tensor) -> None:
        (loss * self.loss_factor).backward()

    def clear_gradients(self) -> None:
        """`clear_gradients` as in `TrainBackend.clear_gradients`."""
        self._give_away()
        for param in self._slices.params.values():
            param.grad = None
        self._optimizer.clear()

    def _give_away(self) -> None:
        for part in sharded_modules(self._whole):
            part.reshard()

    def reduce_gradients(self) -> None:
        """See `TrainBackend`. The sums were formed in the backward passes.

        A parameter whose gradient is zero on all ranks is left alone, as in a single process, where
        it has none: an optimizer would move it by its moments and its decay.
        """
        self._slices.take_gradients()
        own = {name for name, grad in self._optimizer.gradients() if bool(grad.any())}
        held = set().union(*self.gather(own))
        self._slices.drop_gradients(held)

    def grad_norm(self) -> float:
        """See `TrainBackend`; all ranks call after `reduce_gradients`."""
        # Python's numbers are float64: a square of a float32 does not overflow.
        return math.sqrt(sum(norm * norm for norm in self.gather(self._optimizer.grad_norm())))

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Full summed gradient of every parameter that has one; all ranks iterate to the end."""
        for name, grad in self._optimizer.gradients():
            yield name, self._slices.full(name, grad)

    def step(self, *, learning_rate: float, grad_norm: float) -> None:
        """`step` as in `TrainBackend.step`."""
        self._optimizer.step(
            learning_rate=learning_rate,
            max_grad_norm=self._train.max_grad_norm,
            grad_norm=grad_norm,
        )
        self.clear_gradients()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `TrainBackend`; one parameter at a time is whole."""
        for name, param in self._slices.params.items():
            with self._ranks.naming(f"gathering the weights {name}"):
                full = cast(Any, param.detach()).full_tensor()
            yield name, full.to(device=self._device, dtype=self._dtype)

    def state_dict(self) -> dict[str, Any]:
        """See `TrainBackend`; one tensor at a time is gathered, and stays on rank 0."""
        state = self._optimizer.state_dict()
        masters = {name: self._kept(name, part) for name, part in state["masters"].items()}
        moments = {
            name: {key: self._kept(name, part) for key, part in parts.items()}
            for name, parts in state["moments"].items()
        }
        return {**state, "masters": masters, "moments": moments} if self.rank == 0 else {}

    def _kept(self, name: str, part: Tensor) -> Tensor | None:
        if not self._slices.is_slice(name, part):
            return part
        with self._ranks.naming(f"gathering the state of {name}"):
            full = self._slices.full(name, part)
        return full.cpu() if self.rank == 0 else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """`load_state_dict` as in `TrainBackend.load_state_dict`."""
        self._give_away()
        check_same_parameters(self._slices.params, state["masters"])
        masters = {name: self._own(name, full) for name, full in state["masters"].items()}
        moments = {
            name: {key: self._own(name, full) for key, full in parts.items()}
            for name, parts in state["moments"].items()
        }
        self._optimizer.load_state_dict({**state, "masters": masters, "moments": moments})

    def _own(self, name: str, full: Tensor) -> Tensor:
        return full if full.ndim == 0 else self._slices.own(name, full)
