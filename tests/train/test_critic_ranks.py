"""Two real processes train policy and critic as one does."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl.config.schema import CriticSection, TrainSection
from agentrl.errors import TrainError
from agentrl.metrics.names import is_of_machine
from agentrl.train.backends.choose import make_backend
from agentrl.train.critic import Critic
from agentrl.train.reference import Reference
from agentrl.train.trainer import Trainer
from tests.train.crew import joined
from tests.train.test_critic import ppo, same, value_model, weights
from tests.train.tiny_llama import make_groups, make_step, relative_error, tiny_model

TRAIN = TrainSection(learning_rate=1e-2, max_grad_norm=0.5)
SECTION = ppo(
    kl_coef=0.1, old_log_probs="recompute", reference_update={"every_steps": 1, "polyak": 0.5},
    kl_target=0.05, kl_horizon=20,
)  # fmt: skip
CUT = {"epochs": 2, "minibatches": 2, "micro_batch_tokens": 32}


def steps():
    return [make_step(make_groups(seed), algorithm=SECTION, **CUT) for seed in (0, 1)]


def made(ranks):
    policy, model = tiny_model(), value_model()
    backend = make_backend(policy, train=TRAIN, gradient_checkpointing=False, ranks=ranks)
    critic = Critic(model, section=CriticSection(learning_rate=1e-2), train=TRAIN, ranks=ranks)
    reference = Reference(tiny_model(seed=1))
    trainer = Trainer(
        policy, train=TRAIN, algorithm=SECTION, backend=backend, critic=critic, reference=reference
    )
    return policy, model, reference, trainer


def train(ranks=None):
    policy, model, reference, trainer = made(ranks)
    metrics = [trainer.step(step).result() for step in steps()]
    metrics = [{k: v for k, v in found.items() if not is_of_machine(k)} for found in metrics]
    return {
        "weights": weights(policy),
        "critic": weights(model),
        "reference": {name: tensor.clone() for name, tensor in reference.state_dict().items()},
        "metrics": metrics,
        "kl_coef": trainer.kl_coef,
    }


def train_as(address, rank, world_size):
    ranks = joined(address, rank, world_size)
    try:
        return train(ranks)
    finally:
        ranks.close()


def fail_as(address, rank, world_size):
    """The critic of rank 1 breaks after the ranks have compared their weights."""
    ranks = joined(address, rank, world_size)
    try:
        policy, model, _, trainer = made(ranks)
        with torch.no_grad():
            model.value_head.bias.fill_(math.nan if rank == 1 else 0.0)
        with pytest.raises(TrainError) as caught:
            trainer.step(steps()[0])
        return str(caught.value), same(weights(policy), weights(tiny_model()))
    finally:
        ranks.close()


def test_two_ranks_make_the_updates_of_one(crew):
    """Fails if values, KL or returns stay with the rank that asked for them, if the critic's
    gradient is not summed over the ranks, or if the ranks steer the penalty apart."""
    alone = train()
    ranks = crew.run(2, train_as)
    for name in ("weights", "critic", "reference"):
        assert same(ranks[0][name], ranks[1][name])
        assert relative_error(ranks[0][name], alone[name]) < 1e-9
    assert ranks[0]["metrics"] == ranks[1]["metrics"]
    assert ranks[0]["kl_coef"] == ranks[1]["kl_coef"] == pytest.approx(alone["kl_coef"])
    for ours, theirs in zip(ranks[0]["metrics"], alone["metrics"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-8)


def test_a_critic_that_breaks_on_one_rank_stops_both(crew):
    (first, kept), (second, kept_too) = crew.run(2, fail_as)
    assert "the critic gives a value of nan" in second
    assert "rank 1: TrainError: the critic gives a value of nan" in first
    assert kept
    assert kept_too
