"""A step that fails leaves its batch behind, and the batch fails again."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import torch

from agentrl.config.schema import TrainSection
from agentrl.errors import RunError, TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.train.failed_step import load_failed_step, save_failed_step
from agentrl.train.losses import LossInputs, TokenLosses, policy_loss
from agentrl.train.replay_failed_step import replay_failed_step
from agentrl.train.trainer import Trainer
from tests.train.test_critic import make_critic, ppo
from tests.train.test_trainer import spoiled
from tests.train.tiny_llama import algorithm, make_groups, make_step, reference, tiny_model

TRAIN = TrainSection(learning_rate=1e-2)


def equal(ours, theirs):
    """Of records, to the bit and in their types."""
    if isinstance(ours, MetricBag):
        return isinstance(theirs, MetricBag)
    if isinstance(ours, np.ndarray):
        return ours.dtype == theirs.dtype and np.array_equal(ours, theirs, equal_nan=True)
    if is_dataclass(ours):
        return type(ours) is type(theirs) and all(
            equal(getattr(ours, f.name), getattr(theirs, f.name)) for f in fields(ours)
        )
    if isinstance(ours, tuple) and len(ours) == len(theirs):
        return type(ours) is type(theirs) and all(map(equal, ours, theirs))
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(equal(ours[key], theirs[key]) for key in ours)
    return ours == theirs and type(ours) is type(theirs)


@pytest.mark.parametrize("section", [algorithm(), ppo(kl_coef=0.1)], ids=["final", "open"])
def test_a_batch_comes_back_as_it_was(tmp_path, section):
    """Fails if a record is left out: with open credit its plan, keys of rows, counts by mask."""
    step = make_step(make_groups(), algorithm=section, epochs=2, minibatches=2)
    path = save_failed_step(tmp_path, step, version=6, error="what was said")
    assert path == tmp_path / "failed-step-7.pt"
    found = load_failed_step(path)
    assert (found.version, found.error) == (6, "what was said")
    assert equal(step, found.batch)
    assert (found.batch.credit is None) == (section.kl_coef == 0)

    # And trains as it would have.
    def loss_of(batch):
        trainer = Trainer(
            tiny_model(), train=TRAIN, algorithm=section, reference=reference(),
            critic=make_critic() if section.needs_values else None,
        )  # fmt: skip
        return trainer.step(batch).result()["train/loss"]

    assert loss_of(found.batch) == loss_of(step)


def test_a_failure_says_where_the_batch_is_and_a_replay_fails_in_the_same_words(tmp_path):
    """Fails if the batch is written after its credit was settled, or not at all."""
    step, row = spoiled(make_step(make_groups()))
    trainer = Trainer(
        tiny_model(torch.float32), train=TRAIN, algorithm=algorithm(), failures=tmp_path
    )
    trainer.step(make_step(make_groups(1)))
    with pytest.raises(TrainError, match="gradient norm of the policy") as caught:
        trainer.step(step)
    path = tmp_path / "failed-step-2.pt"
    assert str(path) in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    other = Trainer(tiny_model(torch.float32), train=TRAIN, algorithm=algorithm())
    with pytest.raises(
        TrainError, match=f"rows whose own gradient is not finite: .*{row.rollout_id}"
    ):
        replay_failed_step(path, other)
    # The trainer itself is as it was.
    assert trainer.version == 1
    assert trainer.step(make_step(make_groups(1))).result()["train/updates"] == 1
    assert "is not finite" in load_failed_step(path).error


def test_what_is_not_a_failed_step_is_refused(tmp_path):
    with pytest.raises(RunError, match="cannot be read as a failed step"):
        load_failed_step(tmp_path / "failed-step-1.pt")
    (tmp_path / "torn.pt").write_bytes(b"torn")
    with pytest.raises(RunError, match="cannot be read as a failed step"):
        load_failed_step(tmp_path / "torn.pt")
    torch.save({"format": 0}, tmp_path / "old.pt")
    with pytest.raises(RunError, match="has format 0"):
        load_failed_step(tmp_path / "old.pt")


@policy_loss("failed_step_breaks")
def breaks(inputs: LossInputs) -> TokenLosses:
    raise ZeroDivisionError("of my own")


def test_a_loss_that_raises_is_named_and_its_batch_is_kept(tmp_path):
    """What it raised came out bare: no name, no batch to look at."""
    section = algorithm(policy_loss="failed_step_breaks")
    trainer = Trainer(tiny_model(), train=TRAIN, algorithm=section, failures=tmp_path)
    with pytest.raises(
        TrainError, match="'failed_step_breaks' raised ZeroDivisionError: of my own"
    ):
        trainer.step(make_step(make_groups(), algorithm=section))
    assert load_failed_step(tmp_path / "failed-step-1.pt").version == 0


def test_a_batch_for_which_memory_runs_out_is_kept(tmp_path):
    """Fails if nobody can look at the one batch that did not fit."""

    def runs_out(module, args):
        raise torch.OutOfMemoryError("CUDA out of memory: tried to allocate 9 GiB")

    model = tiny_model()
    trainer = Trainer(model, train=TRAIN, algorithm=algorithm(), failures=tmp_path)
    model.get_input_embeddings().register_forward_pre_hook(runs_out)
    with pytest.raises(TrainError, match="tried to allocate 9 GiB"):
        trainer.step(make_step(make_groups()))
    assert "out of memory" in load_failed_step(tmp_path / "failed-step-1.pt").error
