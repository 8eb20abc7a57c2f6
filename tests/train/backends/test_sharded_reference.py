"""A reference of which every rank holds a slice: the numbers of a whole one, and less memory."""

from __future__ import annotations

import pytest
import torch

from agentrl.config.schema import ModelSection
from agentrl.config.training import TorchTraining
from agentrl.errors import TrainError
from agentrl.metrics.names import is_of_machine
from agentrl.train.backends.choose import make_backend
from agentrl.train.reference import Reference, load_reference
from agentrl.train.trainer import Trainer
from tests.train.backends.sharded_trainers import (
    KINDS,
    algorithm,
    needs,
    same_bits,
    section,
)
from tests.train.backends.test_sharded_rank import write_model
from tests.train.crew import joined
from tests.train.tiny_llama import make_groups, make_step, relative_error, tiny_model

KL = {"kl_coef": 0.3, "old_log_probs": "recompute"}
MOVING = {"reference_update": {"every_steps": 1, "polyak": 0.3}}
CASES = {
    "kl-loss": ({"use_kl_loss": True, **KL}, {}),
    "kl-reward": ({"preset": "reinforce++", "advantage_estimator": None, "loss_agg_mode": None,
                   **KL}, {}),
    "moving": ({**KL, **MOVING}, {"epochs": 2, "minibatches": 2}),
}  # fmt: skip


def steps_of(case, seeds=(0, 1, 2)):
    changes, cut = CASES[case]
    chosen = algorithm(**changes)
    cut = {"micro_batch_tokens": 32, **cut}
    return chosen, [make_step(make_groups(seed), algorithm=chosen, **cut) for seed in seeds]


def trained(kind, ranks, case, dtype, *, steps=slice(None), load=None, save=None):
    """Train with a reference that is divided as the policy is; what a comparison wants to know."""
    chosen, batches = steps_of(case)
    train = section(**KINDS[kind]) if kind else section()
    model = tiny_model(dtype)
    backend = make_backend(model, train=train, gradient_checkpointing=False, ranks=ranks)
    held = Reference(tiny_model(dtype, seed=1), ranks=ranks)
    trainer = Trainer(model, train=train, algorithm=chosen, backend=backend, reference=held)
    if load:
        trainer.load(load)
    metrics = [trainer.step(batch).result() for batch in batches[steps]]
    if save:
        trainer.save(save)
    return {
        "weights": {name: tensor.clone() for name, tensor in trainer.weights()},
        "reference": {name: tensor.clone() for name, tensor in held.state_dict().items()},
        "metrics": [{k: v for k, v in m.items() if not is_of_machine(k)} for m in metrics],
    }


def train_as(address, rank, world_size, *args, **options):
    ranks = joined(address, rank, world_size)
    try:
        return trained(args[0], ranks, *args[1:], **options)
    finally:
        ranks.close()


def go_on_as(address, rank, world_size, kind, case, dtype, folder):
    return train_as(address, rank, world_size, kind, case, dtype, steps=slice(2, 3), load=folder)


def begin_as(address, rank, world_size, kind, case, dtype, folder):
    return train_as(address, rank, world_size, kind, case, dtype, steps=slice(0, 2), save=folder)


def close(ours, theirs, *, error, rel):
    assert relative_error(ours["weights"], theirs["weights"]) < error
    assert relative_error(ours["reference"], theirs["reference"]) < error
    for mine, other in zip(ours["metrics"], theirs["metrics"], strict=True):
        assert mine == pytest.approx(other, rel=rel, abs=1e-12 if rel < 1e-7 else 1e-6)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_slices_of_a_reference_give_its_numbers(crew, case, world_size):
    """Fails if a slice follows another slice of the policy, if the last rank's shorter slice is
    padded with numbers, or if a rank without rows makes no pass."""
    alone = trained(None, None, case, torch.float64)
    ranks = crew.run(world_size, train_as, "fsdp2", case, torch.float64)
    assert all(rank["metrics"] == ranks[0]["metrics"] for rank in ranks)
    assert all(rank["reference"] == {} for rank in ranks[1:])
    close(ranks[0], alone, error=1e-9, rel=1e-9)


@pytest.mark.parametrize("case", ["kl-loss", "moving"])
def test_fsdp2_divides_the_reference_of_zero_3(crew, case):
    """One mechanism serves both; fails if the two libraries get into each other's way."""
    needs("zero3")
    alone = trained(None, None, case, torch.float32)
    ranks = crew.run(2, train_as, "zero3", case, torch.float32)
    assert ranks[0]["metrics"] == ranks[1]["metrics"]
    close(ranks[0], alone, error=1e-5, rel=1e-3)


def test_a_moved_reference_is_saved_whole_and_any_number_of_ranks_goes_on(crew, tmp_path):
    """Fails if slices get into the file, or if a resumed run holds to what the first began with."""
    whole = trained(None, None, "moving", torch.float64)
    crew.run(2, begin_as, "fsdp2", "moving", torch.float64, tmp_path)
    three = crew.run(3, go_on_as, "fsdp2", "moving", torch.float64, tmp_path)[0]
    alone = trained(None, None, "moving", torch.float64, steps=slice(2, 3), load=tmp_path)
    for found in (three, alone):
        close(found, {**whole, "metrics": whole["metrics"][2:]}, error=1e-9, rel=1e-9)


def load_as(address, rank, world_size, kind, folder):
    """Bytes of the loaded reference in this process, and of the whole weights."""
    ranks = joined(address, rank, world_size)
    try:
        made = load_reference(
            ModelSection(path=str(folder), dtype="bfloat16"),
            algorithm(**KL),
            backend=TorchTraining() if kind is None else section(**KINDS[kind]).backend,
            ranks=ranks,
        )
        assert made is not None
        whole = sum(shape.numel() * 2 for shape in made.frozen.shapes.values())
        held = made.frozen.held().values()
        assert {tensor.dtype for tensor in held} == {torch.bfloat16}
        # Of the storage, not of the view: a slice of a whole that is still there saves nothing.
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
        full = made.state_dict()
        return sum(storages.values()), whole, full
    finally:
        ranks.close()


@pytest.mark.parametrize(("kind", "parts"), [("fsdp2", 2), ("zero3", 2), ("zero2", 1), (None, 1)])
def test_a_rank_holds_its_part_of_the_reference_and_no_more(crew, kind, parts, tmp_path):
    """Fails on a whole copy on every rank, as ZeRO 2 has one of the policy; fails if frozen slices
    are widened to float32."""
    if kind:
        needs(kind)
    write_model(tmp_path)
    model = tiny_model(torch.bfloat16)
    for held, whole, full in (answers := crew.run(2, load_as, kind, tmp_path)):
        assert held == pytest.approx(whole / parts, rel=0.01)
        assert not full or same_bits(full, dict(model.named_parameters()))
    assert answers[0][2]


def apart_as(address, rank, world_size):
    ranks = joined(address, rank, world_size)
    try:
        with pytest.raises(TrainError, match="rank 1 holds other weights than rank 0"):
            Reference(tiny_model(seed=rank), ranks=ranks)
        return True
    finally:
        ranks.close()


def test_slices_of_different_references_are_refused(crew):
    assert crew.run(2, apart_as) == [True, True]
