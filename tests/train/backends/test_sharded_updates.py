"""FSDP2 and ZeRO on real gloo ranks: the update of a single process, whoever holds which part."""

from __future__ import annotations

import pytest
import torch

from agentrl.config.training import LoraSection
from tests.train.backends.sharded_trainers import (
    KINDS,
    algorithm,
    needs,
    same_bits,
    section,
    train_alone,
    train_together,
)
from tests.train.tiny_llama import make_groups, make_step, relative_error

pytestmark = pytest.mark.slow

CASES = {
    "plain": ({}, {}, {}),
    "epochs-kl": (
        {"old_log_probs": "recompute", "kl_coef": 0.3, "loss_agg_mode": "token-mean"},
        {"epochs": 2, "minibatches": 2},
        {"tied": False},
    ),
    "entropy": ({"entropy_coef": 0.3, "loss_agg_mode": "token-mean"}, {}, {}),
    "adapters": ({}, {}, {"lora": LoraSection(rank=3)}),
    "checkpointing": ({}, {"micro_batch_tokens": 10_000}, {"checkpointing": True}),
    "first-layer": ({}, {}, {"checkpointing": 1, "lora": LoraSection(rank=3), "attention": "sdpa"}),
}


def compared(crew, kind, case, dtype, *, world_size=2, seeds=(0, 1)):
    """(ranks, alone) after the same steps."""
    changes, cut, options = CASES[case]
    chosen = algorithm(**changes)
    cut = {"micro_batch_tokens": 32, **cut}
    steps = [make_step(make_groups(seed), algorithm=chosen, **cut) for seed in seeds]
    options = dict(options)
    train = section(**KINDS[kind], lora=options.pop("lora", None))
    options = {"train": train, "algorithm": chosen, **options}
    alone = train_alone(steps, dtype, dict(options))
    ranks = crew.run(world_size, train_together, steps, dtype, dict(options))
    first = ranks[0]
    assert all(same_bits(rank["weights"], first["weights"]) for rank in ranks)
    assert all(rank["metrics"] == first["metrics"] for rank in ranks)
    assert all(rank["state"] == {} and rank["on_disk"] == {} for rank in ranks[1:])
    assert same_bits(first["on_disk"], first["weights"])
    assert first["weights"].keys() == alone["weights"].keys()
    kernel = options.get("attention", "written_out")
    assert {run["attention"] for run in (alone, *ranks)} == {kernel}
    assert len(first["gradients"]) == len(alone["gradients"]) > 1
    return ranks, alone


def gradient_errors(ours, theirs):
    return [
        relative_error(first, second)
        for first, second in zip(ours["gradients"], theirs["gradients"], strict=True)
    ]


@pytest.mark.parametrize(
    ("case", "world_size"),
    [("plain", 3), ("epochs-kl", 3), ("entropy", 2), ("checkpointing", 2), ("first-layer", 2)],
)
def test_slices_make_the_update_of_one_process(crew, case, world_size):
    """Fails if gradients are averaged, in the layers alone or everywhere; if a rank out of rows
    stays away; if the head is not there when it runs."""
    ranks, alone = compared(crew, "fsdp2", case, torch.float64, world_size=world_size)
    errors = gradient_errors(ranks[0], alone)
    assert errors[0] < 1e-12
    assert max(errors) < 1e-9
    assert relative_error(ranks[0]["weights"], alone["weights"]) < 1e-9
    for ours, theirs in zip(ranks[0]["metrics"], alone["metrics"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        *((kind, "plain") for kind in KINDS),
        *((kind, "entropy") for kind in ("zero2", "zero3")),
        *((kind, "adapters") for kind in ("fsdp2", "zero0", "zero1", "zero2", "zero3")),
    ],
)
def test_every_kind_makes_the_update_of_one_process(crew, kind, case):
    """Fails if the averaging of the engine is not undone, if it is undone twice, if gradients of
    all but the last micro-batch are lost, and if weights come without what adapters add."""
    needs(kind)
    ranks, alone = compared(crew, kind, case, torch.float32)
    errors = gradient_errors(ranks[0], alone)
    # AdamW moves a weight of nearly no gradient by what is left of it after rounding.
    later = 1e-6 if case == "plain" else 1e-4
    assert errors[0] < 1e-6
    assert max(errors) < later
    assert relative_error(ranks[0]["weights"], alone["weights"]) < later
    for ours, theirs in zip(ranks[0]["metrics"], alone["metrics"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("kind", "case"),
    [("zero2", "epochs-kl"), ("zero3", "epochs-kl"), ("zero3", "checkpointing")],
)
def test_zero_does_so_over_several_updates(crew, kind, case):
    needs(kind)
    ranks, alone = compared(crew, kind, case, torch.float32)
    assert gradient_errors(ranks[0], alone)[0] < 1e-6
    # Later gradients are those of weights that Adam has moved by a rounding error's sign.
    assert max(gradient_errors(ranks[0], alone)) < 1e-4
    assert relative_error(ranks[0]["weights"], alone["weights"]) < 1e-5


@pytest.mark.parametrize("kind", ["fsdp2", "zero2", "zero3"])
def test_in_bfloat16_sums_are_formed_in_float32(crew, kind):
    """Fails if gradients are added up in bfloat16, over ranks or over micro-batches."""
    needs(kind)
    ranks, alone = compared(crew, kind, "plain", torch.bfloat16)
    assert gradient_errors(ranks[0], alone)[0] < 3e-3
    assert {tensor.dtype for tensor in ranks[0]["weights"].values()} == {torch.bfloat16}
    masters = ranks[0]["state"]["masters"]
    assert {tensor.dtype for tensor in masters.values()} == {torch.float32}
    assert all(
        torch.equal(masters[name].bfloat16(), weight)
        for name, weight in ranks[0]["weights"].items()
    )
