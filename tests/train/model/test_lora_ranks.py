"""Adapters and Muon on real ranks: the same bits on every rank, the update of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agentrl.config.schema import TrainSection
from agentrl.config.training import LoraSection
from agentrl.train.backends.data_parallel import DataParallelBackend
from agentrl.train.model.adapters.four_bit import keep_in_four_bits
from agentrl.train.model.lora import add_adapters, base_weights
from agentrl.train.trainer import Trainer
from tests.train.crew import Crew, joined
from tests.train.tiny_llama import algorithm, make_groups, make_step, relative_error, tiny_model

LORA = TrainSection(learning_rate=1e-2, lora=LoraSection(rank=3))
BITS = TrainSection(
    learning_rate=1e-2, optimizer="adamw_8bit", lora=LoraSection(rank=3, base="nf4")
)
MUON = TrainSection(learning_rate=1e-2, optimizer="muon")


def made(train: TrainSection, rank: int) -> Any:
    # Ranks whose generators stand elsewhere, as they do in a run.
    few = train.optimizer == "adamw_8bit" or (train.lora is not None and train.lora.base)
    model = tiny_model(torch.float32 if few else torch.float64)
    torch.manual_seed(100 + rank)
    if train.lora is not None:
        add_adapters(model, train.lora, base="b")
        if train.lora.base is not None:
            keep_in_four_bits(model, torch.device("cpu"))
    return model


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: param.detach().clone() for name, param in model.named_parameters()}


def train_rank(address: str, rank: int, world_size: int, train: TrainSection, batches: Any) -> Any:
    ranks = joined(address, rank, world_size)
    model = made(train, rank)
    try:
        backend = DataParallelBackend(model, train=train, gradient_checkpointing=False, ranks=ranks)
        trainer = Trainer(model, train=train, algorithm=algorithm(), backend=backend)
        for batch in batches:
            trainer.step(batch)
        return weights(model), dict(trainer.weights())
    finally:
        ranks.close()


@pytest.mark.parametrize(("train", "limit"), [(LORA, 1e-9), (MUON, 1e-2), (BITS, 1e-3)])
def test_two_ranks_make_the_update_of_one(crew: Crew, train: TrainSection, limit: float) -> None:
    """Fails if every rank draws adapters of its own (they are refused), or if a frozen weight is
    looked for in the sum over ranks. Muon rounds to bfloat16 inside, so its limit is a wide one."""
    if train is BITS:
        pytest.importorskip("bitsandbytes")
    batches = [make_step(make_groups(seed), micro_batch_tokens=32) for seed in (0, 1)]
    alone = made(train, 0)
    trainer = Trainer(alone, train=train, algorithm=algorithm())
    for batch in batches:
        trainer.step(batch)
    (first, sent), (second, _) = crew.run(2, train_rank, train, batches)
    assert all(torch.equal(first[name], second[name]) for name in first)
    moved = {n: w - made(train, 0).get_parameter(n) for n, w in weights(alone).items()}
    ours = {n: w - made(train, 0).get_parameter(n) for n, w in first.items()}
    assert relative_error(ours, moved) < limit
    # What goes to the engines has the names of the model, whatever is trained.
    assert list(sent) == [name for name, _ in base_weights(alone)]
