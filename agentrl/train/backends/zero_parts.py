"""Views of DeepSpeed's optimizers, one class for each of its four kinds.

DeepSpeed's own `step` forms the norm, clips and updates in one go. The trainer wants to see the
norm before anything moves, and to give an update up, so gradients and state are reached here, by
documented functions where there are some. Written against DeepSpeed 0.19.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.train.backends.ranks import Ranks
from agentrl.train.backends.zero_muon import FlatMuon
from agentrl.train.optim.divided_muon import MatrixPart
from agentrl.train.saving.own_part import MASTERS, OwnPart, share_of_copies

MOMENTS = ("exp_avg", "exp_avg_sq")
MOMENTUM = "momentum_buffer"


def zero_parts(engine: Any, stage: int) -> ZeroParts:
    """The view that fits the engine's optimizer."""
    if stage == 0:
        return Stage0(engine)
    if stage == 3:
        return Stage3(engine)
    return (
        Bf16Stage1(engine) if hasattr(engine.optimizer, "get_grads_for_norm") else Stage12(engine)
    )


class ZeroParts(ABC):
    """Gradients, norm, weights and state of one rank's engine. All ranks call everything."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._optimizer = engine.optimizer
        self._matrices: set[int] = set()

    def divide(self, matrices: Sequence[nn.Parameter], *, ranks: Ranks) -> None:
        """Show a `FlatMuon` where in DeepSpeed's tensors the matrices are. All ranks call."""
        muon = self._adamw()
        assert isinstance(muon, FlatMuon)
        self._matrices = {id(param) for param in matrices}
        held = [self._place(param) for param in matrices]
        by_rank = ranks.gather([len(part) for _, part in held])
        parts = [
            MatrixPart(
                shape=self._shape(param),
                sizes=tuple(counts[index] for counts in by_rank),
                tensor=tensor,
                start=part.start,
                rank=ranks.rank,
            )
            for index, (param, (tensor, part)) in enumerate(zip(matrices, held, strict=True))
        ]
        muon.divide(parts, group=torch.distributed.group.WORLD)

    def _shape(self, param: nn.Parameter) -> tuple[int, int]:
        rows, columns = param.shape
        return rows, columns

    def _place(self, param: nn.Parameter) -> tuple[Tensor, range]:
        """The tensor that the optimizer moves, and where in it this rank's numbers are.

        The matrices are the first group.
        """
        mapping = param._hp_mapping  # pyright: ignore[reportAttributeAccessIssue]
        if mapping is None:
            return self._flat()[0], range(0)
        place = mapping.get_hp_fragment_address()
        return self._flat()[0], range(place.start, place.start + place.numel)

    @abstractmethod
    def clear_gradients(self) -> None:
        """Forget what the passes since the last step have left."""

    @abstractmethod
    def grad_norm(self) -> Any:
        """Global norm, as a number or a tensor; -1 or not finite if the gradient is not."""

    def whole(self, param: nn.Parameter) -> AbstractContextManager[Any]:
        """Inside, the parameter is all there."""
        return nullcontext()

    def full_gradient(self, param: nn.Parameter) -> Tensor:
        """[as the parameter] float32."""
        from deepspeed.utils import safe_get_full_grad

        return _there(safe_get_full_grad(param))

    def full_state(self, param: nn.Parameter) -> Iterator[tuple[str, Tensor]]:
        """`master` first, and the moments once there are some, each [as the parameter] float32."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        yield "master", _there(safe_get_full_fp32_param(param))
        if not any(self._adamw().state.get(flat) for flat in self._flat()):
            return
        self._link()
        if id(param) in self._matrices:
            yield MOMENTUM, _there(safe_get_full_optimizer_state(param, MOMENTUM))
            return
        yield "step", self._steps()
        for key in MOMENTS:
            yield key, _there(safe_get_full_optimizer_state(param, key))

    def own_state(self, name: str, param: nn.Parameter, *, ranks: Ranks) -> Iterator[OwnPart]:
        """This rank's numbers of what `full_state` gives, as they lie in the flat tensors."""
        if any(self._adamw().state.get(flat) for flat in self._flat()):
            self._link()
            if id(param) not in self._matrices and ranks.rank == 0:
                steps = {name: self._steps()}
                yield from share_of_copies("step", steps, rank=0, world_size=1)
        start, numbers = self._fragments(param)
        for kind, part in numbers.items():
            yield OwnPart(
                kind=kind,
                name=name,
                shape=tuple(getattr(param, "ds_shape", param.shape)),
                start=start,
                numbers=part.detach().reshape(-1),
            )

    def _fragments(self, param: nn.Parameter) -> tuple[int, dict[str, Tensor]]:
        """The first number that this rank has of a parameter, and by kind its numbers."""
        mapping = param._hp_mapping  # pyright: ignore[reportAttributeAccessIssue]
        if mapping is None:
            return 0, {}
        moments = mapping.optim_fragment or {}
        found = {MASTERS: mapping.get_hp_fragment()}
        found |= {key: moments[key] for key in (*MOMENTS, MOMENTUM) if key in moments}
        return mapping.lp_fragment_address.start, found

    def load(self, param: nn.Parameter, master: Tensor, moments: Mapping[str, Tensor]) -> None:
        """Take over what `full_state` gave; parameters all at the same step."""
        with self.whole(param):
            param.data.copy_(master)
        self._write(param, "master", master.to(torch.float32))
        if moments:
            self._make_moments(moments.get("step"))
            for key in moments.keys() - {"step"}:
                self._write(param, key, moments[key].to(torch.float32))

    def _write(self, param: nn.Parameter, key: str, full: Tensor) -> None:
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        if key == "master":
            safe_set_full_fp32_param(param, full)
        else:
            safe_set_full_optimizer_state(param, full, key)

    @abstractmethod
    def _flat(self) -> list[Tensor]:
        """The tensors that AdamW works on."""

    def _adamw(self) -> torch.optim.Optimizer:
        return self._optimizer.optimizer

    def _steps(self) -> Tensor:
        """How often AdamW has moved."""
        kept = [self._adamw().state.get(flat) or {} for flat in self._flat()]
        return next(state["step"] for state in kept if "step" in state).clone()

    def _make_moments(self, step: Tensor | None) -> None:
        """See that there is state to write into, AdamW's at this step if one is given."""
        optimizer = self._adamw()
        state = optimizer.state
        for flat in self._flat():
            if isinstance(optimizer, FlatMuon) and optimizer.moves_by_muon(flat):
                if not state.get(flat):
                    state[flat] = {MOMENTUM: torch.zeros_like(flat.data)}
                continue
            if not state.get(flat):
                state[flat] = {key: torch.zeros_like(flat.data) for key in MOMENTS}
                state[flat]["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
            if step is not None:
                state[flat]["step"].fill_(step.item())
        self._link()

    def _link(self) -> None:
        """Link parameters to their moments in the flat tensors.

        DeepSpeed does so once, after AdamW has moved the first of its groups, and leaves out those
        that have no moments at that time.
        """
        link = getattr(self._optimizer, "_lazy_init_hp_params_optimizer_state", None)
        if link is not None:
            self._optimizer._hp_optimizer_states_linked = False
            link()


class Stage0(ZeroParts):
    """A copy on every rank, float32; AdamW works on the parameters themselves."""

    def clear_gradients(self) -> None:
        """`clear_gradients` as in `ZeroParts.clear_gradients`."""
        self._engine.zero_grad()

    def grad_norm(self) -> Any:
        """`grad_norm` as in `ZeroParts.grad_norm`."""
        grads = [param.grad for param in self._flat() if param.grad is not None]
        return torch.nn.utils.get_total_norm(grads) if grads else 0.0

    def full_gradient(self, param: nn.Parameter) -> Tensor:
        """`full_gradient` as in `ZeroParts.full_gradient`."""
        return torch.zeros_like(param) if param.grad is None else param.grad

    def full_state(self, param: nn.Parameter) -> Iterator[tuple[str, Tensor]]:
        """`full_state` as in `ZeroParts.full_state`."""
        yield "master", param
        yield from self._optimizer.state.get(param, {}).items()

    def own_state(self, name: str, param: nn.Parameter, *, ranks: Ranks) -> Iterator[OwnPart]:
        """`own_state` as in `ZeroParts.own_state`."""
        place = {"rank": ranks.rank, "world_size": ranks.world_size}
        for key, tensor in self.full_state(param):
            kind = MASTERS if key == "master" else key
            yield from share_of_copies(kind, {name: tensor}, **place)

    def load(self, param: nn.Parameter, master: Tensor, moments: Mapping[str, Tensor]) -> None:
        """`load` as in `ZeroParts.load`."""
        param.data.copy_(master)
        if moments:
            self._optimizer.state[param] = {
                key: value.clone().to(param.device) for key, value in moments.items()
            }

    def divide(self, matrices: Sequence[nn.Parameter], *, ranks: Ranks) -> None:
        """`divide` as in `ZeroParts.divide`: every rank has all of them, and moves all."""
        self._optimizer.divide(
            [
                MatrixPart(
                    shape=self._shape(param), sizes=(param.numel(),), tensor=param, start=0, rank=0
                )
                for param in matrices
            ],
            group=None,
        )

    def _flat(self) -> list[Tensor]:
        return [param for group in self._optimizer.param_groups for param in group["params"]]


class Stage12(ZeroParts):
    """Optimizer state in parts, and with stage 2 gradients, too."""

    def clear_gradients(self) -> None:
        """`clear_gradients` as in `ZeroParts.clear_gradients`."""
        zero = self._optimizer
        zero.zero_grad(set_to_none=True)
        zero.micro_step_id = -1
        if zero.cpu_offload:
            zero.reset_cpu_buffers()
            zero._offload_accumulated_param_ids = set()
        for kept in (zero.averaged_gradients, zero.all_grad_tensors):
            for group in kept:
                kept[group] = None

    def grad_norm(self) -> Any:
        """`grad_norm` as in `ZeroParts.grad_norm`."""
        return self._optimizer.scaled_global_norm()

    def _flat(self) -> list[Tensor]:
        return list(self._optimizer.single_partition_of_fp32_groups)


class Bf16Stage1(ZeroParts):
    """Stage 1 for bfloat16 is an optimizer of its own in DeepSpeed."""

    def clear_gradients(self) -> None:
        """`clear_gradients` as in `ZeroParts.clear_gradients`."""
        self._optimizer.clear_hp_grads()
        self._optimizer.clear_lp_grads()

    def grad_norm(self) -> Any:
        """`grad_norm` as in `ZeroParts.grad_norm`."""
        from deepspeed.runtime.utils import get_global_norm_of_tensors

        grads, _ = self._optimizer.get_grads_for_norm()
        return get_global_norm_of_tensors(input_tensors=grads)

    def _flat(self) -> list[Tensor]:
        return list(self._optimizer.fp32_groups_flat_partition)


class Stage3(ZeroParts):
    """ZeRO 3: weights, gradients and optimizer state are all in parts."""

    def clear_gradients(self) -> None:
        """`clear_gradients` as in `ZeroParts.clear_gradients`."""
        zero = self._optimizer
        zero.zero_grad(set_to_none=True)
        if zero.offload_optimizer:
            zero.reset_cpu_buffers()
        else:
            zero.averaged_gradients = {}

    def grad_norm(self) -> Any:
        """`grad_norm` as in `ZeroParts.grad_norm`."""
        from deepspeed.runtime.utils import combine_grad_norm_groups

        return combine_grad_norm_groups(self._optimizer._get_norm_groups())

    def whole(self, param: nn.Parameter) -> AbstractContextManager[Any]:
        """`whole` as in `ZeroParts.whole`."""
        from deepspeed.runtime.zero import GatheredParameters

        # Who writes inside writes the same on every rank; rank 0's is what stays.
        return GatheredParameters([param], modifier_rank=0)

    def _write(self, param: nn.Parameter, key: str, full: Tensor) -> None:
        # The functions for full tensors fail on the last rank if ranks do not divide the numbers.
        from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

        size = param.ds_tensor.numel()  # pyright: ignore[reportAttributeAccessIssue]
        start = size * torch.distributed.get_rank()
        own = torch.zeros(size, dtype=full.dtype)
        part = full.flatten()[start : start + size]
        own[: len(part)] = part
        if key == "master":
            safe_set_local_fp32_param(param, own)
        else:
            safe_set_local_optimizer_state(param, own, key)

    def _fragments(self, param: nn.Parameter) -> tuple[int, dict[str, Tensor]]:
        flat, place = self._place(param)
        state = self._adamw().state.get(flat) or {}
        found = {MASTERS: flat, **{key: state[key] for key in (*MOMENTS, MOMENTUM) if key in state}}
        size = param.ds_tensor.numel()  # pyright: ignore[reportAttributeAccessIssue]
        start = size * torch.distributed.get_rank()
        return start, {kind: part[place.start : place.stop] for kind, part in found.items()}

    def _shape(self, param: nn.Parameter) -> tuple[int, int]:
        rows, columns = param.ds_shape  # pyright: ignore[reportAttributeAccessIssue]
        return rows, columns

    def _place(self, param: nn.Parameter) -> tuple[Tensor, range]:
        zero = self._optimizer
        group, start, size = zero.grad_position[zero.get_param_id(param)]
        # The last ranks' parts end with padding.
        left = param.ds_numel - size * torch.distributed.get_rank()  # pyright: ignore[reportAttributeAccessIssue]
        return self._flat()[group], range(start, start + max(0, min(size, left)))

    def _flat(self) -> list[Tensor]:
        return list(self._optimizer.fp32_partitioned_groups_flat)


def _there(found: Tensor | None) -> Tensor:
    assert found is not None, "DeepSpeed does not know this parameter"
    return found
