"""FSDP2: every rank holds a slice of each parameter, its gradient and its optimizer state.

`shard_model` divides the model. What is stored between steps are float32 slices; passes gather them
in the model's own dtype, and gradients are summed in float32, neither averaged nor divided. The
optimizer works on the slices as on ordinary tensors: AdamW looks at each number by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from agentrl.batch.tensors import TensorBatch
from agentrl.config.schema import TrainSection
from agentrl.train.backends.contract import compensation
from agentrl.train.backends.filling import Filling
from agentrl.train.backends.lockstep import LockstepBackend
from agentrl.train.backends.ranks import Ranks
from agentrl.train.backends.sliced_optimizer import make_sliced_optimizer
from agentrl.train.backends.slices import Slices, shard_model, sharded_modules
from agentrl.train.backends.torch_backend import RESPONSE_MASK
from agentrl.train.model.proof import ProofRows
from agentrl.train.optim.optimizer import check_same_parameters
from agentrl.train.saving.own_part import OwnPart, by_kind, share_of_copies
from agentrl.train.saving.stored_tensors import shape_of


class FsdpBackend(LockstepBackend):
    """A `TrainBackend` of one rank among several, each with its slices of the model."""

    def __init__(
        self,
        model: Any,
        *,
        train: TrainSection,
        gradient_checkpointing: bool | int,
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
        sharding = train.backend
        assert sharding.kind == "fsdp2", sharding.kind
        filling = Filling()
        with ranks.naming("cutting the model up"):
            shard_model(
                model,
                self._whole,
                ranks=ranks.world_size,
                offload=sharding.offload,
                filling=filling,
            )
        filling.settle(self.gather)
        self.loss_factor = compensation(
            data_parallel_size=ranks.world_size, averages_over_ranks=False
        )
        self._slices = Slices(model)
        self._watched: set[str] = set()
        self._reached: set[str] = set()
        self._counts = False
        self._hooks = [part.register_forward_pre_hook(self._watch) for part in self._parts()]
        self._optimizer = make_sliced_optimizer(self._slices, model, train, device=self._device)

    def _parts(self) -> Iterator[nn.Module]:
        return (cast(nn.Module, part) for part in sharded_modules(self._whole))

    def _watch(self, module: nn.Module, args: object) -> None:
        """Note from now on which weights the backward passes of this rank reach.

        FSDP2 gives every parameter a gradient, of zeros if it had none, so this is the only sign.
        Weights gathered once keep their `nn.Parameter`, so every part is watched but once.
        """
        for name, param in self._model.named_parameters():
            if not isinstance(param, DTensor) and name not in self._watched:
                self._watched.add(name)
                if param.requires_grad:
                    param.register_post_accumulate_grad_hook(partial(self._reach, name))
        if len(self._watched) == len(self._slices.params):
            while self._hooks:
                self._hooks.pop().remove()

    def _reach(self, name: str, param: Tensor) -> None:
        if self._counts:
            self._reached.add(name)

    def _forward(self, batch: TensorBatch | ProofRows | Callable[[], None]) -> Any:
        # Padding reaches weights as well, and weighs nothing.
        self._counts = isinstance(batch, TensorBatch) and len(batch.index_A) > 0
        out = self._whole(batch)
        if not torch.is_grad_enabled():
            self._give_away()
        return out

    def _backward(self, loss: Tensor) -> None:
        (loss * self.loss_factor).backward()

    def clear_gradients(self) -> None:
        """`clear_gradients` as in `TrainBackend.clear_gradients`."""
        self._give_away()
        self._reached.clear()
        for param in self._slices.params.values():
            param.grad = None
        self._optimizer.clear()

    def _give_away(self) -> None:
        for part in sharded_modules(self._whole):
            part.reshard()

    def reduce_gradients(self) -> None:
        """See `TrainBackend`. The sums were formed in the backward passes.

        A parameter that no row of any rank has reached is left alone, as in a single process, where
        it has no gradient: an optimizer would move it by its moments and its decay.
        """
        self._slices.take_gradients()
        held = set().union(*self.gather(self._reached))
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

    def parameters(self, *, trained_only: bool = False) -> Iterator[tuple[str, Tensor]]:
        """See `TrainBackend`; one parameter at a time is whole."""
        for name, param in self._slices.params.items():
            if trained_only and not param.requires_grad:
                continue
            with self._ranks.naming(f"gathering the weights {name}"):
                full = cast(Any, param.detach()).full_tensor()
            yield name, full.to(device=self._device, dtype=self.dtype)

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

    def own_state(self, *, alone: bool = False) -> Iterator[OwnPart]:
        """`own_state` as in `TrainBackend.own_state`."""
        for kind, tensors in by_kind(self._optimizer.state_dict()).items():
            for name, tensor in tensors.items():
                if self._slices.is_slice(name, tensor):
                    yield self._slices.own_part(kind, name, tensor)
                elif self.rank == 0:  # counts, the same on every rank
                    yield from share_of_copies(kind, {name: tensor}, rank=0, world_size=1)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """`load_state_dict` as in `TrainBackend.load_state_dict`."""
        self._give_away()
        trained = {n: param for n, param in self._slices.params.items() if param.requires_grad}
        check_same_parameters(trained, state["masters"])
        masters = {
            name: self._slices.own_of(state["masters"], name, name) for name in state["masters"]
        }
        moments = {
            name: {
                key: self._slices.own_of(parts, key, name) if shape_of(parts, key) else parts[key]
                for key in parts
            }
            for name, parts in state["moments"].items()
        }
        self._optimizer.load_state_dict({**state, "masters": masters, "moments": moments})
