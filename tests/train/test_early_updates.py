"""Updates made before a step is complete: not a bit of weights, losses or records differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from agentrl.batch import StepBatch
from agentrl.config.schema import TrainSection
from agentrl.errors import TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.metrics.names import is_of_machine
from agentrl.train.backends.choose import make_backend
from agentrl.train.trainer import Trainer
from agentrl.types import TrainedTokens
from tests.train.backends.sharded_trainers import KINDS, needs
from tests.train.crew import Crew, joined
from tests.train.tiny_llama import (
    algorithm,
    make_groups,
    make_step,
    reference,
    tiny_model,
)

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "one pass": ({}, 1),
    "two passes": ({}, 2),
    "a penalty": ({"kl_coef": 0.3, "use_kl_loss": True}, 1),
    "a penalty, two passes": ({"kl_coef": 0.3, "use_kl_loss": True}, 2),
    "an entropy bonus": ({"entropy_coef": 0.3}, 2),
    "rows without an advantage": ({"loss_agg_mode": "token-mean"}, 1),
}
SIZES = (4, 3, 2, 5, 4, 4)


def train(
    changes: dict[str, Any], epochs: int, *, early: int
) -> tuple[dict[str, torch.Tensor], list[dict[str, float]], list[Any]]:
    """Weights, metrics and recorded tokens of two steps of three minibatches."""
    section, told = algorithm(**changes), []
    model = tiny_model(torch.float32)

    def record(step: int, rank: int, rows: Sequence[TrainedTokens]) -> None:
        told.extend((step, row) for row in rows)

    trainer = Trainer(
        model,
        train=TrainSection(learning_rate=1e-2, minibatches=3, epochs_per_batch=epochs),
        algorithm=section,
        reference=reference(dtype=torch.float32) if section.kl_coef else None,
        record=record,
    )
    metrics = []
    for step in range(2):
        batch = make_step(make_groups(step, SIZES), algorithm=section, minibatches=3, epochs=epochs)
        for update in batch.updates[:early]:
            trainer.update_early(update)
        assert trainer.version == step
        metrics.append(trainer.step(batch).result())
    return dict(trainer.weights()), metrics, told


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("early", [1, 2])
def test_nothing_differs(case: str, early: int) -> None:
    """Fails if an early update is made again, if the sampler is compared in another update, or if
    the reference is asked about other rows."""
    changes, epochs = CASES[case]
    expected = train(changes, epochs, early=0)
    weights, metrics, told = train(changes, epochs, early=early)
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected[0].items())
    for ours, theirs in zip(metrics, expected[1], strict=True):
        assert comparable(ours) == comparable(theirs)
    assert told == expected[2]


OF_THE_POLICY = ("clip_ratio/", "entropy", "rollout_corr/", "sampling/", "train/ratio")
"""Metrics in which rows without a gradient count. They are read when the step is complete, so
after its early updates."""


def comparable(metrics: dict[str, float]) -> dict[str, float]:
    """Without times, and without what rows of no update add."""
    return {
        name: value
        for name, value in metrics.items()
        if not (is_of_machine(name) or name.startswith(OF_THE_POLICY))
    }


def test_a_step_that_begins_with_another_update_is_refused() -> None:
    batch = make_step(make_groups(0, SIZES), minibatches=3)
    model = tiny_model(torch.float32)
    trainer = Trainer(model, train=TrainSection(), algorithm=algorithm())
    trainer.update_early(batch.updates[1])
    with pytest.raises(TrainError, match=r"update 0 .* --resume"):
        trainer.step(batch)


def test_an_algorithm_that_needs_the_whole_step_is_refused() -> None:
    section = algorithm(old_log_probs="recompute")
    batch = make_step(make_groups(0, SIZES), algorithm=section, minibatches=3)
    trainer = Trainer(tiny_model(torch.float32), train=TrainSection(), algorithm=section)
    with pytest.raises(TrainError, match="old_log_probs"):
        trainer.update_early(batch.updates[0])


def test_a_minibatch_without_a_gradient_is_an_update_too() -> None:
    batch = make_step(make_groups(0, SIZES), minibatches=3)
    empty = StepBatch(updates=batch.updates, advantages={}, metrics=MetricBag())
    section = TrainSection(minibatches=3)
    trainer = Trainer(tiny_model(torch.float32), train=section, algorithm=algorithm())
    for update in empty.updates:
        trainer.update_early(update)
    assert trainer.step(empty).result()["train/updates"] == 3
    assert trainer.version == 1


def test_a_minibatch_of_which_nothing_is_left_moves_no_rate() -> None:
    """Fails if the rate of an early update assumes more updates than the whole step has."""
    section = TrainSection(learning_rate=1e-2, minibatches=3, warmup_steps=4)
    batch = make_step(make_groups(0, SIZES), minibatches=3)
    batch = replace(batch, updates=batch.updates[:2])  # as if all rollouts of the third had failed
    found = []
    for early in range(3):
        trainer = Trainer(tiny_model(torch.float32), train=section, algorithm=algorithm())
        for update in batch.updates[:early]:
            trainer.update_early(update)
        rate = trainer.step(batch).result()["train/learning_rate"]
        assert rate == pytest.approx(1e-2 * (1 / 13 + 2 / 13) / 2)
        found.append(dict(trainer.weights()))
    for weights in found[1:]:
        assert all(torch.equal(weights[name], tensor) for name, tensor in found[0].items())


def early_on_ranks(
    address: str, rank: int, world_size: int, backend: dict[str, Any], early: int
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """One rank's part of a step whose first updates are made early."""
    ranks = joined(address, rank, world_size)
    try:
        section = TrainSection(learning_rate=1e-2, minibatches=3, **backend)
        model = tiny_model(torch.float32)
        sharded = make_backend(model, train=section, gradient_checkpointing=False, ranks=ranks)
        trainer = Trainer(model, train=section, algorithm=algorithm(), backend=sharded)
        batch = make_step(make_groups(0, SIZES), minibatches=3)
        for update in batch.updates[:early]:
            trainer.update_early(update)
        metrics = trainer.step(batch).result()
        return {name: tensor.clone() for name, tensor in trainer.weights()}, metrics
    finally:
        ranks.close()


@pytest.mark.parametrize("kind", ["torch", "fsdp2", "zero2"])
def test_nothing_differs_on_two_ranks(crew: Crew, kind: str) -> None:
    if kind != "torch":
        needs(kind)
    backend = KINDS.get(kind, {"backend": kind})
    waits = crew.run(2, early_on_ranks, backend, 0)
    early = crew.run(2, early_on_ranks, backend, 2)
    for (ours, measured), (theirs, expected) in zip(early, waits, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        assert comparable(measured) == comparable(expected)
