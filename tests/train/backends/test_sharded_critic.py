"""Policy and critic on FSDP2 and ZeRO: values, losses, weights and state of a single process."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from agentrl.config.schema import CriticSection
from agentrl.errors import TrainError
from agentrl.metrics.names import is_of_machine
from agentrl.train.backends.choose import make_backend
from agentrl.train.critic import Critic
from agentrl.train.model.lora import add_adapters
from agentrl.train.model.value_head import ValueModel
from agentrl.train.reference import Reference
from agentrl.train.trainer import Trainer
from tests.train.backends.sharded_trainers import KINDS, needs, section
from tests.train.crew import joined
from tests.train.test_critic import ppo, value_model
from tests.train.tiny_llama import make_groups, make_step, relative_error, tiny_model

pytestmark = pytest.mark.slow

KL = {
    "kl_coef": 0.1, "old_log_probs": "recompute",
    "reference_update": {"every_steps": 1, "polyak": 0.5},
    "kl_target": 0.05,
    "kl_horizon": 20,
}  # fmt: skip
CASES = {
    "zero-head": ({}, {}, {}),
    "warm-up": ({}, {"minibatches": 2}, {"warmup_steps": 1}),
    "kl": (KL, {"epochs": 2, "minibatches": 2}, {"value_clip": 0.2}),
    "adapters": ({}, {"epochs": 2, "minibatches": 2}, {"lora": 2}),
}
"""Changes of the algorithm, of the batch and of the critic."""


def critic_model(case, dtype):
    """With a head of zeros no gradient reaches the body in the first update, yet it has one."""
    if case == "zero-head":
        return ValueModel(tiny_model(dtype, seed=5).model)
    return value_model(dtype)


def made(kind, ranks, case, dtype, *, checkpointing=False, critic_kind=Critic, optimizer="adamw"):
    train = section(**(KINDS[kind] if kind else {}), optimizer=optimizer)
    changes, _, of_critic = CASES[case]
    chosen = ppo(**changes)
    policy = tiny_model(dtype)
    settings = {"train": train, "gradient_checkpointing": checkpointing, "ranks": ranks}
    backend = make_backend(policy, **settings)
    chosen_critic = CriticSection.model_validate({"learning_rate": 1e-2, **of_critic})
    values = critic_model(case, dtype)
    if chosen_critic.adapters is not None:
        add_adapters(values.body, chosen_critic.adapters, base="tiny", key="critic.lora")
    critic = critic_kind(values, section=chosen_critic, **settings)
    held = None
    if chosen.kl_coef:
        divided = ranks if kind in ("fsdp2", "zero3") else None
        held = Reference(tiny_model(dtype, seed=1), ranks=divided)
    return Trainer(
        policy, train=train, algorithm=chosen, backend=backend, critic=critic, reference=held
    ), critic


def batches(case, seeds=(0, 1, 2)):
    changes, cut, _ = CASES[case]
    cut = {"micro_batch_tokens": 32, **cut}
    return [make_step(make_groups(seed), algorithm=ppo(**changes), **cut) for seed in seeds]


def train(kind, ranks, case, dtype, *, steps=slice(2), load=None, save=None, **options):
    """Train on some steps of three; what a comparison wants to know, afterwards."""
    trainer, critic = made(kind, ranks, case, dtype, **options)
    if load:
        trainer.load(load)
    metrics = [trainer.step(batch).result() for batch in batches(case)[steps]]
    if save:
        trainer.save(save)
    asked = [m for update in batches(case)[0].updates for m in update.micro_batches]
    return {
        "weights": {name: tensor.clone() for name, tensor in trainer.weights()},
        "critic": {name: tensor.clone() for name, tensor in critic.backend.weights()},
        "state": critic.state_dict(),
        "metrics": [{k: v for k, v in m.items() if not is_of_machine(k)} for m in metrics],
        "values": critic.row_values(asked),
        "held": sum(p.numel() for p in held_parameters(critic)),
        "numel": sum(p.numel() for p in critic_model(case, dtype).parameters()),
    }


@cache
def train_alone(case, dtype, steps=2):
    return train(None, None, case, dtype, steps=slice(steps))


def held_parameters(critic):
    """The numbers that this rank stores of every weight."""
    for param in critic.model.parameters():
        local = getattr(param, "_local_tensor", None)  # FSDP2
        yield getattr(param, "ds_tensor", param) if local is None else local  # ZeRO 3


def train_as(address, rank, world_size, *args, **options):
    ranks = joined(address, rank, world_size)
    try:
        return train(args[0], ranks, *args[1:], **options)
    finally:
        ranks.close()


def begin_as(address, rank, world_size, kind, case, dtype, folder):
    return train_as(address, rank, world_size, kind, case, dtype, save=folder)


def go_on_as(address, rank, world_size, kind, case, dtype, folder):
    return train_as(address, rank, world_size, kind, case, dtype, steps=slice(2, 3), load=folder)


def checkpointed_as(address, rank, world_size, kind, case, dtype):
    return train_as(address, rank, world_size, kind, case, dtype, checkpointing=True)


def muon_as(address, rank, world_size, kind, case, dtype):
    return train_as(address, rank, world_size, kind, case, dtype, optimizer="muon")


def same_on_all(ranks):
    for rank in ranks[1:]:
        assert rank["metrics"] == ranks[0]["metrics"]
        assert rank["state"] == {}
        for name in ("weights", "critic"):
            assert all(torch.equal(rank[name][n], t) for n, t in ranks[0][name].items())


def close(ours, theirs, *, error, rel):
    assert relative_error(ours["weights"], theirs["weights"]) < error
    assert relative_error(ours["critic"], theirs["critic"]) < error
    assert relative_error(ours["state"]["masters"], theirs["state"]["masters"]) < error
    for mine, other in zip(ours["metrics"], theirs["metrics"], strict=True):
        assert mine == pytest.approx(other, rel=rel, abs=1e-12 if rel < 1e-7 else 1e-5)
    for key, values in theirs["values"].items():
        assert np.allclose(ours["values"][key], values, rtol=rel, atol=error)


def check_parts(kind, ranks, numel):
    """Each rank holds its share of the critic, or a copy."""
    held = [rank["held"] for rank in ranks]
    if kind == "fsdp2":
        assert sum(held) == numel
    parts = len(ranks) if kind in ("fsdp2", "zero3") else 1
    assert held == pytest.approx([numel / parts] * len(ranks), rel=0.1 if parts > 2 else 0.01)


@pytest.mark.parametrize(("case", "world_size"), [("zero-head", 2), ("warm-up", 3)])
def test_fsdp2_trains_policy_and_critic_as_one_process(crew, case, world_size):
    """Fails if a body whose gradient is zero is skipped (its moments would be a step behind), if
    the head is not gathered, or if a rank without rows makes no pass of the critic."""
    alone = train_alone(case, torch.float64)
    ranks = crew.run(world_size, train_as, "fsdp2", case, torch.float64)
    same_on_all(ranks)
    close(ranks[0], alone, error=1e-9, rel=1e-8)
    check_parts("fsdp2", ranks, alone["numel"])


@pytest.mark.parametrize("kind", ["zero0", "zero2-offload"])
def test_zero_trains_policy_and_critic_as_one_process(crew, kind):
    """Two engines in one process; fails if one closes the update of the other."""
    needs(kind)
    alone = train_alone("kl", torch.float32)
    ranks = crew.run(2, train_as, kind, "kl", torch.float32)
    same_on_all(ranks)
    close(ranks[0], alone, error=1e-4, rel=1e-3)
    check_parts(kind, ranks, alone["numel"])


@pytest.mark.parametrize(
    ("kind", "case"), [("zero2", "warm-up"), ("zero3", "zero-head"), ("zero3", "adapters")]
)
def test_zero_does_so_with_a_fresh_head_a_warm_up_and_adapters(crew, kind, case):
    needs(kind)
    alone = train_alone(case, torch.float32)
    ranks = crew.run(2, train_as, kind, case, torch.float32)
    same_on_all(ranks)
    close(ranks[0], alone, error=1e-4, rel=1e-3)


@pytest.mark.parametrize("kind", ["fsdp2", "zero2", "zero3"])
def test_a_critic_goes_on_with_any_number_of_ranks_of_any_backend(crew, kind, tmp_path):
    """Fails if moments are saved in slices, or (hangs) by rank 0 without the others; if a KL
    penalty, a reference that follows or two engines in one process make another update."""
    needs(kind)
    dtype = torch.float64 if kind == "fsdp2" else torch.float32
    error, rel = (1e-9, 1e-8) if kind == "fsdp2" else (1e-4, 1e-3)
    two = crew.run(2, begin_as, kind, "kl", dtype, tmp_path)
    same_on_all(two)
    close(two[0], train_alone("kl", dtype), error=error, rel=rel)
    check_parts(kind, two, two[0]["numel"])
    whole = train_alone("kl", dtype, 3)
    whole = {**whole, "metrics": whole["metrics"][2:]}
    three = crew.run(3, go_on_as, kind, "kl", dtype, tmp_path)
    same_on_all(three)
    close(three[0], whole, error=error, rel=rel)
    check_parts(kind, three, two[0]["numel"])
    alone = train(None, None, "kl", dtype, steps=slice(2, 3), load=tmp_path)
    close(alone, whole, error=error, rel=rel)


def test_adapters_of_a_critic_move_alone_and_go_on_on_any_ranks(crew, tmp_path):
    whole = train_alone("adapters", torch.float64, 3)
    before = dict(value_model(torch.float64).named_parameters())
    trained = {name for name in whole["state"]["masters"] if "value_head" not in name}
    assert trained
    assert all(".lora_" in name for name in trained)
    assert not torch.equal(whole["critic"]["value_head.weight"], before["value_head.weight"])
    moved = [name for name in before if not torch.equal(whole["critic"][name], before[name])]
    assert {name.split(".")[-2] for name in moved} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        "value_head",
    }
    whole = {**whole, "metrics": whole["metrics"][2:]}
    crew.run(2, begin_as, "fsdp2", "adapters", torch.float64, tmp_path)
    ranks = crew.run(3, go_on_as, "fsdp2", "adapters", torch.float64, tmp_path)
    same_on_all(ranks)
    close(ranks[0], whole, error=1e-9, rel=1e-8)


def test_fsdp2_checkpoints_the_layers_of_a_critic(crew):
    alone = train_alone("kl", torch.float64)
    ranks = crew.run(2, checkpointed_as, "fsdp2", "kl", torch.float64)
    close(ranks[0], alone, error=1e-9, rel=1e-8)


def test_muon_moves_policy_and_critic_on_fsdp2(crew):
    alone = train(None, None, "kl", torch.float64, optimizer="muon")
    ranks = crew.run(2, muon_as, "fsdp2", "kl", torch.float64)
    same_on_all(ranks)
    close(ranks[0], alone, error=1e-9, rel=1e-8)


@pytest.mark.parametrize("kind", ["fsdp2", "zero3"])
def test_over_a_bfloat16_body_values_are_not_rounded_to_bfloat16(crew, kind):
    """Fails if the head computes in the body's dtype: all values would be bfloat16 numbers."""
    needs(kind)
    found = crew.run(2, train_as, kind, "warm-up", torch.bfloat16)[0]
    alone = train(None, None, "warm-up", torch.bfloat16)
    values = torch.tensor(np.concatenate(list(found["values"].values())), dtype=torch.float32)
    values = values[values != 0]
    assert not torch.equal(values.bfloat16().float(), values)
    assert {tensor.dtype for tensor in found["state"]["masters"].values()} == {torch.float32}
    losses = [m["critic/vf_loss"] for m in found["metrics"]]
    assert losses == pytest.approx([m["critic/vf_loss"] for m in alone["metrics"]], rel=0.1)


class BreaksOnRankOne(Critic):
    """A critic that fails on rank 1 after its first pass."""

    def values(self, model, tensors, micro):
        found = super().values(model, tensors, micro)
        if self.backend.rank == 1:
            raise TrainError("the critic is broken")
        return found


def fail_as(address, rank, world_size, kind):
    ranks = joined(address, rank, world_size)
    try:
        trainer, _ = made(kind, ranks, "warm-up", torch.float32, critic_kind=BreaksOnRankOne)
        with pytest.raises(TrainError) as caught:
            trainer.step(batches("warm-up")[0])
        return str(caught.value)
    finally:
        ranks.close()


@pytest.mark.parametrize("kind", ["fsdp2", "zero3"])
def test_a_critic_that_breaks_on_one_rank_is_noticed_by_the_others_at_once(crew, kind):
    """Fails (waits for a collective's time limit) if passes of a critic are not agreed on."""
    needs(kind)
    assert crew.run(2, fail_as, kind) == [
        "1 of 2 ranks failed; rank 1: TrainError: the critic is broken",
        "the critic is broken",
    ]
