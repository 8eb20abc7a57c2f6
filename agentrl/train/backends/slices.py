"""FSDP2's slices: every rank keeps an equal part of each parameter along its first axis.

Policy, critic and reference are divided here, the last without gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from agentrl.errors import ConfigError
from agentrl.models.parts import device_of, stored_weight
from agentrl.train.backends.filling import Filling
from agentrl.train.model.value_head import ValueModel
from agentrl.train.optim.divided_muon import MatrixPart
from agentrl.train.saving.own_part import OwnPart
from agentrl.train.saving.stored_tensors import numbers_of


def shard_model(
    model: Any, whole: nn.Module, *, ranks: int, offload: bool, filling: Filling
) -> None:
    """Divide a model layer by layer, and once around everything else. All ranks call.

    What is stored are float32 slices of whatever is trained, gathered by the passes in the model's
    own dtype, and slices in that dtype of what is frozen. Gradients are summed in float32, neither
    averaged nor divided. The head of a value model is gathered in float32, too.

    Args:
        model: the same on every rank, in torch's global group; one in parts is read, a layer at a
            time.
        whole: the module that passes call; holds all parameters of `model`.
        ranks: that each get a slice.
        offload: keep the slices in main memory, where the model is on a GPU.
        filling: reads what is in parts; the caller settles it.
    """
    device, dtype = device_of(model), next(model.parameters()).dtype
    trained = any(param.requires_grad for param in model.parameters())
    master = torch.promote_types(dtype, torch.float32) if trained else dtype
    narrow = master != dtype
    mesh = init_device_mesh(device.type, (ranks,))
    fill = partial(_fill, filling, dtype=master, ranks=ranks, rank=mesh.get_local_rank())
    everywhere: dict[str, Any] = {
        "mesh": mesh,
        "offload_policy": CPUOffloadPolicy()
        if offload and device.type == "cuda"
        else OffloadPolicy(),
    }
    as_stored = MixedPrecisionPolicy(cast_forward_inputs=False)
    in_passes = MixedPrecisionPolicy(
        param_dtype=dtype if narrow else None,
        reduce_dtype=master if narrow else None,
        cast_forward_inputs=False,
    )
    if isinstance(model, ValueModel):
        fully_shard(model.value_head, mp_policy=as_stored, **everywhere)
    # Layer by layer: the whole model is never there in float32.
    for layer in _layers(model):
        fill(layer)
        fully_shard(layer, mp_policy=in_passes, **everywhere)
    fill(whole)
    # The head runs last and its gradient comes first: no use in giving it away in between.
    fully_shard(whole, mp_policy=in_passes, reshard_after_forward=not trained, **everywhere)
    for part in sharded_modules(whole):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
        _sum_unused(part, ranks)


def _sum_unused(part: FSDPModule, ranks: int) -> None:
    """Have experts that no token of this rank was sent to take part in the sum as well.

    Raises:
        ConfigError: this torch cannot, and there are parameters of which a rank may use none.
    """
    setter = getattr(part, "set_reduce_scatter_unused_params", None)
    if setter is not None:
        setter(True)
        return
    lists = (m for m in cast(nn.Module, part).modules() if isinstance(m, nn.ModuleList))
    if ranks > 1 and any("expert" in type(child).__name__.lower() for m in lists for child in m):
        raise ConfigError(
            f"train.backend is fsdp2 on {ranks} ranks, and the model has experts one by one: torch "
            f"{torch.__version__} would wait for ranks that use none of them; install torch 2.13 "
            "or newer, or set train.backend: deepspeed"
        )


def sharded_modules(whole: nn.Module) -> Iterator[FSDPModule]:
    """The modules that `shard_model` has divided one by one."""
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            yield module


def _layers(model: nn.Module) -> list[nn.Module]:
    """The blocks that `transformers` declares must stay in one piece: they hold the bulk."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def _fill(
    filling: Filling, module: nn.Module, *, dtype: torch.dtype, ranks: int, rank: int
) -> None:
    """Weights that are here in another dtype; of those in files the rows of this rank."""
    for param in module.parameters():
        if isinstance(param, DTensor):
            continue
        if stored_weight(param) is None:
            param.data = param.data.to(dtype)
            continue
        each = -(-len(param) // ranks) * (param.numel() // max(1, len(param)))
        filling.read(param, rank * each, (rank + 1) * each, dtype=dtype)


class Slices:
    """This rank's parts of all parameters, as plain tensors over the same memory."""

    def __init__(self, model: nn.Module) -> None:
        self.params: dict[str, DTensor] = {
            name: cast(DTensor, param) for name, param in model.named_parameters()
        }
        self._own = {
            name: nn.Parameter(param._local_tensor.detach(), requires_grad=param.requires_grad)
            for name, param in self.params.items()
        }

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Named parameters, as an optimizer reads them."""
        yield from self._own.items()

    def take_gradients(self) -> None:
        """Show the optimizer the gradients that the passes have left."""
        for name, param in self.params.items():
            assert param._local_tensor.data_ptr() == self._own[name].data_ptr(), name
            grad = cast(DTensor | None, param.grad)
            self._own[name].grad = None if grad is None else grad._local_tensor

    def drop_gradients(self, held: set[str]) -> None:
        """Forget the gradients of all parameters but these."""
        for name in self._own.keys() - held:
            self._own[name].grad = None

    def is_slice(self, name: str, tensor: Tensor) -> bool:
        """Return true if a tensor of the optimizer is sharded as its parameter is."""
        return tensor.ndim > 0 and tensor.shape == self._own[name].shape

    def full(self, name: str, part: Tensor) -> Tensor:
        """The whole of which every rank passes its slice."""
        param = self.params[name]
        return DTensor.from_local(
            part,
            param.device_mesh,
            param.placements,
            run_check=False,
            shape=param.shape,
            stride=param.stride(),
        ).full_tensor()

    def own(self, name: str, full: Tensor) -> Tensor:
        """This rank's slice of a whole."""
        param = self.params[name]
        parts = full.chunk(param.device_mesh.size())
        rank = param.device_mesh.get_local_rank()
        return parts[rank] if rank < len(parts) else full[:0]

    def start(self, name: str) -> int:
        """The first number of this rank's slice in the flat form of the whole."""
        param = self.params[name]
        rows, ranks = param.shape[0], param.device_mesh.size()
        first = min(rows, -(-rows // ranks) * param.device_mesh.get_local_rank())
        return first * (param.numel() // rows if rows else 0)

    def own_part(self, kind: str, name: str, part: Tensor) -> OwnPart:
        """This rank's slice as a part of what is saved."""
        return OwnPart(
            kind=kind,
            name=name,
            shape=tuple(self.params[name].shape),
            start=self.start(name),
            numbers=part.detach().reshape(-1),
        )

    def own_of(self, tensors: Mapping[str, Tensor], key: str, name: str) -> Tensor:
        """This rank's slice of one of some tensors, of which no more than that is read."""
        own, start = self._own[name], self.start(name)
        return numbers_of(tensors, key, start, start + own.numel()).view(own.shape)

    @property
    def group(self) -> ProcessGroup:
        """The ranks that hold the slices."""
        return next(iter(self.params.values())).device_mesh.get_group()

    def matrix_part(self, name: str, own: Tensor) -> MatrixPart:
        """The place in the whole of this rank's slice of a matrix, or of a copy of it."""
        param = self.params[name]
        rows, columns = param.shape
        ranks = param.device_mesh.size()
        most = -(-rows // ranks)
        held = [max(0, min(most, rows - most * rank)) for rank in range(ranks)]
        return MatrixPart(
            shape=(rows, columns),
            sizes=tuple(count * columns for count in held),
            tensor=own,
            start=0,
            rank=param.device_mesh.get_local_rank(),
        )
