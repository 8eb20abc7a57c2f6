"""DeepSpeed: ZeRO 0 to 3, with parameters and optimizer in main memory if asked for.

The engine's own accumulation is 1, and where an update ends is said by us (FORMULAS C.3): every
pass of an update is made inside the update, and one padding pass closes it, upon which the engine
forms the sums. It averages over the ranks, which `loss_factor` undoes.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from agentrl.batch.packing import padding_micro_batch
from agentrl.batch.tensors import TensorBatch
from agentrl.config.training import DeepspeedTraining, TrainSection
from agentrl.errors import ConfigError
from agentrl.models.parts import device_of, is_in_parts
from agentrl.models.vision.reader import reader_of
from agentrl.plugins.distribution import install_command
from agentrl.train.backends.contract import compensation
from agentrl.train.backends.filling import Filling
from agentrl.train.backends.lockstep import LockstepBackend
from agentrl.train.backends.ranks import Ranks
from agentrl.train.backends.torch_backend import RESPONSE_MASK
from agentrl.train.backends.zero_init import divide
from agentrl.train.backends.zero_muon import FlatMuon
from agentrl.train.backends.zero_parts import ZeroParts, zero_parts
from agentrl.train.model.proof import ProofRows
from agentrl.train.model.value_head import ValueModel
from agentrl.train.optim.muon import MUON_MOMENTS, checked_matrices
from agentrl.train.optim.optimizer import (
    ADAMW_MOMENTS,
    adamw,
    check_same_kind,
    check_same_parameters,
)
from agentrl.train.saving.own_part import OwnPart


class DeepspeedBackend(LockstepBackend):
    """A `TrainBackend` of one rank among several under a DeepSpeed engine."""

    def __init__(
        self,
        model: Any,
        *,
        train: TrainSection,
        gradient_checkpointing: bool | int,
        ranks: Ranks,
        mask_keys: tuple[str, ...] = RESPONSE_MASK,
    ) -> None:
        """Take the same arguments as `LockstepBackend`.

        Raises:
            ConfigError: DeepSpeed is not installed, or does not know the dtype of the model; or
                numbers of one in parts are not finite, or its files cannot be read.
            TrainError: the ranks hold different weights.
        """
        _check(next(model.parameters()).dtype, device_of(model))
        super().__init__(
            model,
            train=train,
            gradient_checkpointing=gradient_checkpointing,
            ranks=ranks,
            mask_keys=mask_keys,
        )
        self.loss_factor = compensation(
            data_parallel_size=ranks.world_size, averages_over_ranks=True
        )
        self._params = dict(model.named_parameters())
        self._shapes = {name: param.shape for name, param in self._params.items()}
        by_muon = checked_matrices(model) if train.optimizer == "muon" else []
        self._by_muon = frozenset(by_muon)
        filling = Filling()
        with ranks.naming("starting DeepSpeed"):
            self._engine = self._start(filling)
        filling.settle(self.gather)
        self._parts: ZeroParts = zero_parts(self._engine, _sharding(train).zero_stage)
        if by_muon:
            self._parts.divide([self._params[name] for name in by_muon], ranks=ranks)
        self.clear_gradients()

    def _start(self, filling: Filling) -> Any:
        import deepspeed

        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        # It calls functions that this torch has new names for, many times a step.
        warnings.filterwarnings("ignore", r"`torch\.distributed\.", FutureWarning)
        # Without these DeepSpeed asks MPI, or takes the wrong device.
        os.environ.setdefault("LOCAL_RANK", str(self._device.index or 0))
        _compile_nothing()
        deepspeed.init_distributed(
            dist_backend="nccl" if self._device.type == "cuda" else "gloo",
            auto_mpi_discovery=False,
        )
        self._ranks.before_close(_forget_group)
        trained = [param for param in self._model.parameters() if param.requires_grad]
        is_critic = isinstance(self._model, ValueModel)
        head = None if is_critic else self._model.get_output_embeddings()
        # It would round buffers to the dtype of the weights: rotation frequencies, routers' biases.
        buffers = [
            (module, name, buffer)
            for module in self._model.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]
        settings = _settings(self._train, self.dtype, self._ranks.world_size)
        if is_in_parts(self._model):
            divide(self._model, settings, filling, dtype=self.dtype)
        engine, *_ = deepspeed.initialize(
            model=self._whole,
            model_parameters=trained,  # pyright: ignore[reportArgumentType]
            optimizer=self._torch_optimizer(trained),
            config=settings,
            dist_init_required=False,
        )
        for module, name, buffer in buffers:
            setattr(module, name, buffer)
        if _sharding(self._train).zero_stage == 3 and head is not None:
            # The head is not called: its weights are read by the pass around it.
            for param in head.parameters():
                deepspeed.zero.register_external_parameter(self._whole, param)
        return engine

    def _torch_optimizer(self, trained: Sequence[Tensor]) -> torch.optim.Optimizer:
        betas, decay = self._train.betas, self._train.weight_decay
        if not self._by_muon:
            return adamw(trained, betas=betas, weight_decay=decay)
        chosen = {id(self._params[name]) for name in self._by_muon}
        return FlatMuon(
            [param for param in trained if id(param) in chosen],
            [param for param in trained if id(param) not in chosen],
            betas=betas,
            weight_decay=decay,
        )

    def _forward(self, batch: TensorBatch | ProofRows | Callable[[], None]) -> Any:
        return self._engine(batch)

    def _backward(self, loss: Tensor) -> None:
        self._engine.backward(loss * self.loss_factor)

    def clear_gradients(self) -> None:
        """`clear_gradients` as in `TrainBackend.clear_gradients`."""
        self._parts.clear_gradients()
        self._engine.set_gradient_accumulation_boundary(False)

    def reduce_gradients(self) -> None:
        """`reduce_gradients` as in `TrainBackend.reduce_gradients`."""
        with self._ranks.naming("summing gradients"), self.running():
            self._engine.set_gradient_accumulation_boundary(True)
            closing = self.to_tensors(padding_micro_batch())
            if reader_of(self._model) is not None:
                # With offload the engine sums what this pass reaches, and forgets the rest.
                closing = replace(closing, blank_passes=1)
            out = self._forward(closing)
            self._engine.backward((out if isinstance(out, Tensor) else out[0]).sum())

    def grad_norm(self) -> float:
        """See `TrainBackend`; all ranks call after `reduce_gradients`, which nothing follows."""
        with self._ranks.naming("forming the norm of the gradient"):
            norm = float(self._parts.grad_norm())
        # DeepSpeed says -1 for what is not finite.
        return norm if norm >= 0.0 else math.nan

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Full summed gradient of every parameter that has one; all ranks iterate to the end."""
        for name, param in self._params.items():
            if param.requires_grad:
                yield name, self._parts.full_gradient(param)

    def step(self, *, learning_rate: float, grad_norm: float) -> None:
        """See `TrainBackend`. DeepSpeed forms the same norm again and clips by it."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        with self._ranks.naming("updating the weights"):
            self._engine.step()
        self.clear_gradients()

    def parameters(self, *, trained_only: bool = False) -> Iterator[tuple[str, Tensor]]:
        """See `TrainBackend`; one parameter at a time is whole."""
        # What is gathered goes when the next is asked for, and a layer has to wait for its adapter.
        kept = self._adapted and _sharding(self._train).zero_stage == 3
        for name, param in self._params.items():
            if trained_only and not param.requires_grad:
                continue
            with self._ranks.naming(f"gathering the weights {name}"), self._parts.whole(param):
                yield name, param.detach().clone() if kept else param.detach()

    def state_dict(self) -> dict[str, Any]:
        """See `TrainBackend`; one tensor at a time is gathered, and stays on rank 0."""
        masters: dict[str, Tensor] = {}
        moments: dict[str, dict[str, Tensor]] = {}
        for name, param in self._params.items():
            if not param.requires_grad:
                continue
            with self._ranks.naming(f"gathering the state of {name}"):
                for key, full in self._parts.full_state(param):
                    if self.rank != 0:
                        continue
                    kept = full.detach().to("cpu", copy=True)
                    if key == "master":
                        masters[name] = kept
                        moments[name] = {}
                    else:
                        moments[name][key] = kept
        return {"masters": masters, "moments": moments} if self.rank == 0 else {}

    def own_state(self, *, alone: bool = False) -> Iterator[OwnPart]:
        """`own_state` as in `TrainBackend.own_state`."""
        for name, param in self._params.items():
            if param.requires_grad:
                yield from self._parts.own_state(name, param, ranks=self._ranks)

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """`load_state_dict` as in `TrainBackend.load_state_dict`."""
        trained = {
            name: torch.empty(self._shapes[name], device="meta")
            for name, param in self._params.items()
            if param.requires_grad
        }
        check_same_parameters(trained, state["masters"])
        check_same_kind(
            state["moments"],
            lambda name: MUON_MOMENTS if name in self._by_muon else ADAMW_MOMENTS,
        )
        self.clear_gradients()
        for name in trained:
            with self._ranks.naming(f"loading the state of {name}"):
                self._parts.load(self._params[name], state["masters"][name], state["moments"][name])


def _check(dtype: torch.dtype, device: torch.device) -> None:
    # Else it guesses on import, and warns where there is no GPU.
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    try:
        import deepspeed  # noqa: F401  # asked for by the config, so worth its seconds
    except ImportError as error:
        raise ConfigError(
            f"train.backend is deepspeed, but it cannot be imported ({error}); run "
            f"{install_command('deepspeed')} after torch is there, or set train.backend: fsdp2"
        ) from error
    if dtype not in (torch.float32, torch.bfloat16):
        raise ConfigError(
            f"the model is in {dtype}, and DeepSpeed keeps its masters in float32; load it in "
            "bfloat16 or float32"
        )


def _sharding(train: TrainSection) -> DeepspeedTraining:
    assert train.backend.kind == "deepspeed", train.backend.kind
    return train.backend


def _settings(train: TrainSection, dtype: torch.dtype, world_size: int) -> dict[str, Any]:
    sharding = _sharding(train)
    zero: dict[str, Any] = {"stage": sharding.zero_stage}
    if sharding.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        if sharding.zero_stage == 3:
            zero["offload_param"] = {"device": "cpu"}
    return {
        "train_batch_size": world_size,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": train.max_grad_norm,
        "zero_optimization": zero,
        # The optimizer is torch's fused AdamW, with or without Muon, offloaded or not.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": dtype == torch.bfloat16, "check_grad_overflow": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "steps_per_print": None,
    }


def _compile_nothing() -> None:
    """Joins ranks without DeepSpeed's own sum in shared memory, which only its inference calls.

    It is compiled at the first start on a machine, and a process killed meanwhile leaves a lock
    file for which every later start waits without end.
    """
    from deepspeed import ops

    ops.__compatible_ops__["deepspeed_shm_comm"] = False


def _forget_group() -> None:
    """DeepSpeed keeps the group and the numbers of parameters and modules for the whole process.

    Ranks compare those numbers, so processes that were in different groups before begin anew.
    """
    from deepspeed.comm import comm
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
    from deepspeed.runtime.zero.partition_parameters import Init

    Init.param_id = 0
    (next_module,) = DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__ or ([0],)
    next_module[0] = 0
    if comm.is_initialized():
        comm.destroy_process_group()
    comm.cdb = None
