"""A trainer rank under FSDP2 on a given device; in a module that another process can import."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentrl.config.schema import TrainSection
from agentrl.train.backends.choose import make_backend
from agentrl.train.backends.ranks import Ranks
from agentrl.train.trainer import Trainer
from tests.train.backends.sharded_trainers import keep_gradients
from tests.train.tiny_llama import algorithm, make_groups, make_step, tiny_model


def sharded_gradient(address: str, rank: int, world_size: int, device: str) -> dict[str, Tensor]:
    """Gradient of one step."""
    place = torch.device(device, 0) if device == "cuda" else torch.device(device)
    ranks: Any = Ranks(
        address, rank=rank, world_size=world_size, device=place, join_timeout_s=60, timeout_s=60
    )
    try:
        model = tiny_model(torch.float32).to(place)
        train = TrainSection.model_validate({"backend": "fsdp2", "learning_rate": 1e-2})
        backend = make_backend(model, train=train, gradient_checkpointing=False, ranks=ranks)
        kept = keep_gradients(backend)
        trainer = Trainer(model, train=train, algorithm=algorithm(), backend=backend)
        trainer.step(make_step(make_groups()))
        return {name: gradient.cpu() for name, gradient in kept[0].items()}
    finally:
        ranks.close()
