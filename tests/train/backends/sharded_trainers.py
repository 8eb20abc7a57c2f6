"""What ranks of a sharded backend do in tests, and the single process they are held to."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from agentrl.config.training import TorchTraining, TrainSection
from agentrl.metrics.names import is_of_machine
from agentrl.train.backends.agreement import check_shares
from agentrl.train.backends.choose import full_weights, make_backend
from agentrl.train.model.kernels.choose import use_kernel
from agentrl.train.model.lora import add_adapters
from agentrl.train.trainer import Trainer
from tests.train.crew import joined
from tests.train.tiny_llama import algorithm, reference, tiny_model

KINDS: dict[str, dict[str, Any]] = {
    "fsdp2": {"backend": "fsdp2"},
    "zero0": {"backend": {"kind": "deepspeed", "zero_stage": 0}},
    "zero1": {"backend": {"kind": "deepspeed", "zero_stage": 1}},
    "zero2": {"backend": {"kind": "deepspeed", "zero_stage": 2}},
    "zero3": {"backend": {"kind": "deepspeed", "zero_stage": 3}},
    "zero2-offload": {"backend": {"kind": "deepspeed", "zero_stage": 2, "offload": True}},
    "zero3-offload": {"backend": {"kind": "deepspeed", "zero_stage": 3, "offload": True}},
}


def section(**changes: Any) -> TrainSection:
    settings = {"learning_rate": 1e-2, "weight_decay": 0.1, "max_grad_norm": 0.5}
    return TrainSection(**{**settings, **changes})


def needs(kind: str) -> None:
    """Skip where the library of a kind is not installed."""
    if kind.startswith("zero") and not importlib.util.find_spec("deepspeed"):
        pytest.skip("DeepSpeed is not installed here; run make fleet")


def keep_gradients(backend: Any) -> list[dict[str, torch.Tensor]]:
    """From now on the list gets the full gradient of every update, on every rank."""
    kept: list[dict[str, torch.Tensor]] = []
    step = backend.step

    def keeping(**arguments: Any) -> None:
        kept.append({name: grad.clone() for name, grad in backend.gradients()})
        step(**arguments)

    backend.step = keeping
    return kept


def run(
    model: Any,
    ranks: Any,
    steps: list[Any],
    *,
    train: TrainSection,
    algorithm: Any,
    checkpointing: bool | int = False,
    load: Any = None,
    save: Any = None,
) -> dict[str, Any]:
    """Train on some steps; what a comparison wants to know, afterwards."""
    dtype = next(model.parameters()).dtype
    backend = make_backend(model, train=train, gradient_checkpointing=checkpointing, ranks=ranks)
    kept = keep_gradients(backend)
    trainer = Trainer(
        model,
        train=train,
        algorithm=algorithm,
        backend=backend,
        reference=reference(dtype=dtype) if algorithm.kl_coef else None,
    )
    if load is not None:
        trainer.load(load)
    metrics = []
    for step in steps:
        shares = [backend.share(update) for update in step.updates]
        check_shares(backend, step.updates, shares)
        metrics.append(trainer.step(step).result())
    if save is not None:
        trainer.save(save)
    return {
        "gradients": kept,
        "weights": {name: tensor.clone() for name, tensor in trainer.weights()},
        "metrics": [{k: v for k, v in m.items() if not is_of_machine(k)} for m in metrics],
        "version": trainer.version,
        "state": backend.state_dict(),
        "on_disk": full_weights(backend),
        "attention": backend.proof.attention,
    }


def train_together(
    address: str, rank: int, world_size: int, steps: Any, dtype: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """One rank's part of `run`."""
    ranks = joined(address, rank, world_size)
    try:
        return run(made(dtype, options), ranks, steps, **options)
    finally:
        ranks.close()


def train_alone(steps: Any, dtype: Any, options: dict[str, Any]) -> dict[str, Any]:
    """`run` in this process under the torch backend."""
    plain = {"backend": TorchTraining()}
    options = {**options, "train": options["train"].model_copy(update=plain)}
    return run(made(dtype, options), None, steps, **options)


def made(dtype: Any, options: dict[str, Any]) -> Any:
    """The model that `options` are about."""
    model, lora = tiny_model(dtype, tied=options.pop("tied", True)), options["train"].lora
    if lora is not None:
        add_adapters(model, lora, base="tiny")
    use_kernel(model, options.pop("attention", "auto"))
    return model


def same_bits(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in theirs)


__all__ = [
    "KINDS",
    "algorithm",
    "needs",
    "run",
    "same_bits",
    "section",
    "train_alone",
    "train_together",
]
