"""Training steps of the parts: a batch, a trainer, and the gradient of a step by any backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentrl.batch import StepSettings, build_step
from agentrl.batch.records import StepBatch
from agentrl.config.schema import AlgorithmSection, TrainSection
from agentrl.train.backends.choose import make_backend
from agentrl.train.backends.ranks import Ranks
from agentrl.train.trainer import Trainer
from parts.models import make_groups

HORIZON = 1024


def algorithm() -> AlgorithmSection:
    """Dr. GRPO, whose loss is a sum over tokens."""
    section = AlgorithmSection(
        advantage_estimator="dr_grpo", loss_agg_mode="seq-mean-token-sum-norm", horizon=HORIZON
    )
    return section.resolved(horizon=HORIZON)


def make_batch(
    vocabulary: int, *, small: bool, sharing: bool = True, budget: int | None = None
) -> StepBatch:
    """One update of 8 rollouts each of two prompts; tens of tokens where `small`."""
    prompt, answers = (24, 12) if small else (512, 256)
    groups = make_groups(
        vocabulary, prompts=(prompt, prompt // 2), answers=answers, samples=8
    )  # fmt: skip
    return build_step(
        groups,
        StepSettings(
            algorithm=algorithm(),
            micro_batch_tokens=budget or (128 if small else 8192),
            seed=0,
            prefix_sharing=sharing,
        ),
    )


def make_trainer(
    model: Any, *, backend: str = "torch", ranks: Ranks | None = None, checkpointing: bool = False
) -> tuple[Trainer, Any]:
    """A trainer of one process, and its backend."""
    train = TrainSection.model_validate(
        {"backend": backend, "learning_rate": 1e-5, "weight_decay": 0.0}
    )
    made = make_backend(model, train=train, gradient_checkpointing=checkpointing, ranks=ranks)
    return Trainer(model, train=train, algorithm=algorithm(), backend=made), made


def gradient_of(trainer: Trainer, backend: Any, batch: StepBatch) -> dict[str, Tensor]:
    """Train one step and return its gradient before clipping, on the CPU."""
    kept: dict[str, Tensor] = {}
    step = backend.step

    def keeping(**arguments: Any) -> None:
        kept.update((name, grad.detach().cpu().clone()) for name, grad in backend.gradients())
        step(**arguments)

    backend.step = keeping
    try:
        trainer.step(batch)
    finally:
        del backend.step
    return kept


def trained_tokens(batch: StepBatch) -> int:
    """Tokens that the model reads in a step."""
    return sum(micro.num_tokens for update in batch.updates for micro in update.micro_batches)


def step_gradient(model: Any, batch: StepBatch) -> dict[str, Tensor]:
    """The gradient of a step of one process, on the CPU."""
    trainer, backend = make_trainer(model)
    return gradient_of(trainer, backend, batch)


def dtype_name(dtype: torch.dtype) -> str:
    """As in a config: `bfloat16`."""
    return str(dtype).removeprefix("torch.")
