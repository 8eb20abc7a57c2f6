"""FSDP2 on real gloo ranks: the update of a single process, whoever holds which slice."""

from __future__ import annotations

import pytest
import torch
from sharded_trainers import algorithm, same_bits, section, train_alone, train_together
from tiny_llama import make_groups, make_step, relative_error

TRAIN = section(backend="fsdp2")
CASES = {
    "plain": ({}, {}, {}),
    "epochs-kl": (
        {"old_log_probs": "recompute", "kl_coef": 0.3, "loss_agg_mode": "token-mean"},
        {"epochs": 2, "minibatches": 2},
        {"tied": False},
    ),
    "checkpointing": ({}, {"micro_batch_tokens": 10_000}, {"checkpointing": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_update_is_that_of_a_single_process(crew, case):
    changes, cut, options = CASES[case]
    chosen = algorithm(**changes)
    cut = {"micro_batch_tokens": 32, **cut}
    steps = [make_step(make_groups(seed), algorithm=chosen, **cut) for seed in (0, 1)]
    options = {"train": TRAIN, "algorithm": chosen, **options}
    alone = train_alone(steps, torch.float64, dict(options))
    for world_size in (2, 3):
        ranks = crew.run(world_size, train_together, steps, torch.float64, dict(options))
        first = ranks[0]
        assert all(same_bits(rank["weights"], first["weights"]) for rank in ranks)
        assert all(rank["metrics"] == first["metrics"] for rank in ranks)
        assert len(first["gradients"]) == len(alone["gradients"]) > 1
        errors = [
            relative_error(ours, theirs)
            for ours, theirs in zip(first["gradients"], alone["gradients"], strict=True)
        ]
        assert errors[0] < 1e-12, errors
        assert max(errors) < 1e-9
        assert relative_error(first["weights"], alone["weights"]) < 1e-9
        for ours, theirs in zip(first["metrics"], alone["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)
