"""Chooses the train backend that a config asks for; no other module does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from agentrl.config.schema import TrainSection
from agentrl.errors import ConfigError
from agentrl.models.bits import EIGHT_BITS, FOUR_BITS, load_bitsandbytes
from agentrl.models.device import pick_device
from agentrl.models.parts import is_in_parts
from agentrl.train.backends.lockstep import LockstepBackend
from agentrl.train.backends.torch_backend import RESPONSE_MASK, TorchBackend
from agentrl.train.model.kernels.choose import AttentionCall, chosen
from agentrl.train.model.lora import has_adapters
from agentrl.train.model.proof import find_reading, prove

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.backends.contract import TrainBackend
    from agentrl.train.backends.ranks import Ranks


def check_backend(train: TrainSection, *, dtype: str) -> None:
    """Refuse what the backend of `train.backend` cannot do, before there is a model.

    Args:
        train: the optimizer and the backend.
        dtype: of the model, as `bfloat16`.

    Raises:
        ConfigError: settings that do not go together, or bitsandbytes is not installed.
    """
    wrong, backend = "", train.backend
    if train.optimizer == "adamw_8bit":
        load_bitsandbytes(EIGHT_BITS)
    if train.lora is not None and train.lora.base is not None:
        load_bitsandbytes(FOUR_BITS)
    if backend.kind == "torch":
        return
    if backend.kind == "deepspeed" and backend.zero_stage == 0:
        if backend.offload:
            wrong = "offload is true, but ZeRO 0 offloads nothing; set train.backend.zero_stage: 1"
        elif dtype == "bfloat16":
            wrong = (
                "ZeRO 0 adds gradients up in bfloat16; set train.backend.zero_stage: 1, or "
                "train.backend: torch, which keeps a copy on every rank too and adds up in float32"
            )
    if wrong:
        raise ConfigError(f"train.backend is {backend.kind}: {wrong}")


def check_kernel(kernel: str, *, device: str, dtype: str) -> None:
    """Refuse a kernel of attention for its device or dtype; the proof of a model finds the rest.

    Args:
        kernel: `model.attention`.
        device: `model.device`.
        dtype: of the model, as `bfloat16`.

    Raises:
        ConfigError: it does not compute there.
    """
    chosen(kernel, AttentionCall(device=pick_device(device), dtype=getattr(torch, dtype)))


def make_backend(
    model: Any,
    *,
    train: TrainSection,
    gradient_checkpointing: bool | int,
    ranks: Ranks | None,
    mask_keys: tuple[str, ...] = RESPONSE_MASK,
    who: str = "model.path",
) -> TrainBackend:
    """The backend of `train.backend` for this process, whose `ranks` are joined already.

    The model that it holds is compared with its own forward pass before it is returned.

    Args:
        model: a `transformers` causal language model with the same weights on every rank, or, for
            a backend that divides weights, in parts (`load_in_parts`). A sharded backend takes it
            apart: afterwards only the backend can run it and knows its weights.
        train: the optimizer and the backend.
        gradient_checkpointing: layers that recompute activations (`recompute_layers`).
        ranks: the processes that train together, closed by the caller; None is one process.
        mask_keys: masks whose tokens the loss looks at; see `MASK_KEYS`.
        who: names the model and its role at the beginning of a message.

    Raises:
        ConfigError: settings that do not go together, a package that is not installed, or a model
            that the trainer would compute wrongly.
        TrainError: the ranks hold different weights, or one of them is gone.
    """
    in_parts = is_in_parts(model)
    if not in_parts:
        find_reading(model, who=who)
    backend = _make(model, train, gradient_checkpointing, ranks, mask_keys)
    if in_parts:
        assert isinstance(backend, LockstepBackend), type(backend)
        backend.find_reading(who=who)
    backend.proof = prove(backend, model, who=who)
    return backend


def prove_adapters(backend: TrainBackend, model: Any, *, who: str = "model.path") -> None:
    """Compare a model again whose adapters were loaded: fresh ones, as they were, add nothing.

    Args:
        backend: of `make_backend`; its proof is replaced. Without adapters nothing is done.
        model: as it was given to the backend.
        who: as in `make_backend`.

    Raises:
        ConfigError: with these adapters the trainer would compute it wrongly.
    """
    if has_adapters(model):
        backend.proof = prove(backend, model, who=who)


def _make(
    model: Any,
    train: TrainSection,
    gradient_checkpointing: bool | int,
    ranks: Ranks | None,
    mask_keys: tuple[str, ...],
) -> TrainBackend:
    check_backend(train, dtype=str(next(model.parameters()).dtype).removeprefix("torch."))
    if train.backend.kind == "torch":
        if ranks is None or ranks.world_size == 1:
            return TorchBackend(
                model,
                train=train,
                gradient_checkpointing=gradient_checkpointing,
                mask_keys=mask_keys,
                lanes=train.backend.lanes,
            )
        from agentrl.train.backends.data_parallel import DataParallelBackend

        return DataParallelBackend(
            model,
            train=train,
            gradient_checkpointing=gradient_checkpointing,
            ranks=ranks,
            mask_keys=mask_keys,
            lanes=train.backend.lanes,
        )
    if ranks is None:
        raise ConfigError(
            f"train.backend is {train.backend.kind}, which needs a group of ranks, even if it is "
            "one; set runtime: ray, or train.backend: torch"
        )
    if train.backend.kind == "fsdp2":
        from agentrl.train.backends.fsdp import FsdpBackend as Backend
    else:
        from agentrl.train.backends.deepspeed_backend import DeepspeedBackend as Backend

    return Backend(
        model,
        train=train,
        gradient_checkpointing=gradient_checkpointing,
        ranks=ranks,
        mask_keys=mask_keys,
    )


def full_weights(backend: TrainBackend) -> dict[str, Tensor]:
    """All weights in main memory, in the model's dtype, on rank 0; nothing on other ranks.

    All ranks call. One tensor at a time is gathered.
    """
    kept: dict[str, Tensor] = {}
    for name, tensor in backend.weights():
        if backend.rank == 0:
            kept[name] = tensor.detach().to("cpu", copy=True)
    return kept
