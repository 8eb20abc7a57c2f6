"""Distillation on three ranks: the numbers of one process, whoever holds policy and teacher."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.config.schema import ModelSection, TrainSection
from agentrl.metrics.names import is_of_machine
from agentrl.train.backends.choose import make_backend
from agentrl.train.distill.records import TeacherRow
from agentrl.train.distill.teacher_model import TRAINED, TeacherModel, load_teacher
from agentrl.train.frozen_policy import FrozenPolicy, SlicedFrozenPolicy
from agentrl.train.trainer import Trainer
from tests.train.backends.sharded_trainers import KINDS, needs, section
from tests.train.backends.test_sharded_rank import write_model
from tests.train.crew import Crew, joined
from tests.train.distill.distill_parts import section_of, step_of
from tests.train.tiny_llama import (
    VOCABULARY,
    KeepGradient,
    make_groups,
    relative_error,
    tiny_model,
)

pytestmark = pytest.mark.slow


def steps(top_k: int, *, hinted: bool, epochs: int = 2) -> list[Any]:
    """Steps of two minibatches and some passes; with prompts of another length if hinted."""
    made = [
        step_of(
            make_groups(seed), section_of(top_k=top_k), micro_batch_tokens=32, minibatches=2,
            epochs=epochs,
        )
        for seed in (0, 1)
    ]  # fmt: skip
    if not hinted:
        return made
    return [
        replace(
            step,
            teacher_prompts={
                key: np.arange(3, 9 + key.row_index + len(key.rollout_id))
                for update in step.updates
                for micro in update.micro_batches
                for key in micro.rows
            },
        )
        for step in made
    ]


def trained(
    kind: str,
    ranks: Any,
    top_k: int,
    dtype: torch.dtype,
    *,
    hinted: bool,
    sliced: bool = False,
    epochs: int = 2,
) -> dict[str, Any]:
    """Weights and metrics after two steps."""
    train = section(**KINDS[kind]) if kind else section()
    model = tiny_model(dtype)
    backend = make_backend(model, train=train, gradient_checkpointing=False, ranks=ranks)
    other = tiny_model(dtype, seed=1)
    policy: Any = backend
    if not hinted and sliced:
        policy = SlicedFrozenPolicy(other, ranks=ranks, mask_keys=TRAINED)
    elif not hinted:
        policy = FrozenPolicy(other, mask_keys=TRAINED)
    teacher = TeacherModel(policy, top_k=top_k, vocabulary=VOCABULARY, hinted=hinted)
    trainer = Trainer(
        model, train=train, algorithm=section_of(top_k=top_k), backend=backend, teacher=teacher
    )
    metrics = [trainer.step(step).result() for step in steps(top_k, hinted=hinted, epochs=epochs)]
    return {
        "weights": {name: tensor.clone() for name, tensor in trainer.weights()},
        "metrics": [{k: v for k, v in m.items() if not is_of_machine(k)} for m in metrics],
    }


def train_as(
    address: str, rank: int, world_size: int, kind: str, top_k: int, dtype: Any, options: Any
) -> dict[str, Any]:
    ranks = joined(address, rank, world_size)
    try:
        return trained(kind, ranks, top_k, dtype, **options)
    finally:
        ranks.close()


@pytest.mark.parametrize(
    ("kind", "top_k", "options"),
    [
        ("fsdp2", 0, {"hinted": False, "sliced": True}),
        ("fsdp2", 7, {"hinted": False, "sliced": True}),
        ("fsdp2", 7, {"hinted": True}),
        ("zero3", 7, {"hinted": False, "sliced": True}),
        ("zero3", 5, {"hinted": True}),
        ("zero1", 7, {"hinted": False}),
        ("fsdp2", 7, {"hinted": False, "epochs": 1}),
        ("fsdp2", 0, {"hinted": True, "epochs": 1}),
    ],
)
def test_ranks_come_to_the_weights_of_one_process(
    crew: Crew, kind: str, top_k: int, options: dict[str, Any]
) -> None:
    """Fails if ranks divide by tokens of their own, a rank asks for rows of another, or padding
    has another form than micro-batches."""
    needs(kind)
    # DeepSpeed knows float32 at most.
    dtype, error = (torch.float64, 1e-10) if kind == "fsdp2" else (torch.float32, 1e-4)
    same = {key: value for key, value in options.items() if key != "sliced"}
    alone = trained("", None, top_k, dtype, **same)
    for found in crew.run(3, train_as, kind, top_k, dtype, options):
        assert relative_error(found["weights"], alone["weights"]) < error
        for ours, theirs in zip(found["metrics"], alone["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=10 * error, abs=10 * error)


@pytest.mark.parametrize(("epochs", "kept"), [(1, 0), (2, 1)])
def test_ranks_keep_the_numbers_of_their_rows_where_these_stay(epochs: int, kept: int) -> None:
    """Fails if K numbers a token go to ranks that never look at them, or if they do not go where
    a later epoch divides the rows anew."""

    class Listening(KeepGradient):
        """A backend that remembers what ranks tell each other."""

        def gather(self, value: Any) -> list[Any]:
            heard.append(value)
            return super().gather(value)

    heard: list[Any] = []
    model = tiny_model()
    backend = Listening(model)
    section = section_of(top_k=7)
    step = steps(7, hinted=False, epochs=epochs)[0]
    taught = TeacherModel(
        FrozenPolicy(tiny_model(seed=1), mask_keys=TRAINED), top_k=7, vocabulary=VOCABULARY
    )
    trainer = Trainer(
        model, train=TrainSection(), algorithm=section, backend=backend, teacher=taught
    )
    trainer.step(step)
    told = [
        value
        for _, value in (each for each in heard if isinstance(each, tuple) and len(each) == 2)
        if isinstance(value, dict) and any(isinstance(row, TeacherRow) for row in value.values())
    ]
    assert len(told) == kept
    assert backend.kept


def load_as(address: str, rank: int, world_size: int, path: str) -> str:
    ranks = joined(address, rank, world_size)
    try:
        model = ModelSection(path=path, dtype="float32", device="cpu")
        own = section(**KINDS["fsdp2"]).backend
        teacher = load_teacher(model, top_k=0, vocabulary=61, backend=own, ranks=ranks)
        return type(teacher._policy).__name__
    finally:
        ranks.close()


def test_a_teacher_is_divided_where_the_policy_is(crew: Crew, tmp_path: Any) -> None:
    """Fails if every rank of a sharded policy loads a whole teacher to keep."""
    write_model(tmp_path)
    assert set(crew.run(2, load_as, str(tmp_path))) == {"SlicedFrozenPolicy"}
    model = ModelSection(path=str(tmp_path), dtype="float32", device="cpu")
    alone = load_teacher(model, top_k=0, vocabulary=61)
    assert type(alone._policy).__name__ == "FrozenPolicy"
