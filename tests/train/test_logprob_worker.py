"""Old and reference policies: the bits of the trainer, row by row, and nothing that is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from agentrl.config.schema import ModelSection, TrainSection
from agentrl.errors import TrainError
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.frozen_policy import FrozenPolicy
from agentrl.train.logprob_worker import LogProbWorker, in_batch_order
from agentrl.train.model.pretrained import load_pretrained
from agentrl.train.reference import load_reference
from agentrl.train.trainer import Trainer
from tests.train.tiny_llama import algorithm, make_groups, make_step, tiny_model


class Recording(TorchBackend):
    """Keeps the log-probabilities that the loss was computed from."""

    def __init__(self, model, *, gradient_checkpointing=False):
        super().__init__(
            model, train=TrainSection(), gradient_checkpointing=gradient_checkpointing, lanes=1
        )
        self.seen = []

    def log_probs(self, batch, *, loss_of=None):
        out = super().log_probs(batch, loss_of=loss_of)
        if torch.is_grad_enabled():
            self.seen.append(out.log_probs_R.detach().clone())
        return out


class Counting:
    """Counts forward passes."""

    def __init__(self, policy):
        self._policy, self.passes = policy, 0
        self.to_tensors, self.running = policy.to_tensors, policy.running

    def run_each(self, micro_batches, work):
        return [work(self, micro) for micro in micro_batches]

    def log_probs(self, batch):
        self.passes += 1
        return self._policy.log_probs(batch)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_frozen_copy_gives_the_bits_of_the_trainer(dtype, checkpointing):
    """Fails with the library's own attention or log-softmax instead of the trainer's function."""
    step = make_step(make_groups())
    (update,) = step.updates
    backend = Recording(tiny_model(dtype), gradient_checkpointing=checkpointing)
    Trainer(
        None, train=TrainSection(learning_rate=1e-9), algorithm=algorithm(), backend=backend
    ).step(step)
    known = LogProbWorker(FrozenPolicy(tiny_model(dtype), lanes=1), name="copy").row_log_probs(
        update.micro_batches
    )
    assert len(backend.seen) == len(update.micro_batches) > 1
    for micro, seen in zip(update.micro_batches, backend.seen, strict=True):
        assert torch.equal(in_batch_order(known, micro, like=seen, policy="copy"), seen)
        for index, key in enumerate(micro.rows):
            assert len(known[key]) == (micro.row_R == index).sum()
            assert (known[key][~micro.mask_R[micro.row_R == index]] == 0).all()


def test_one_pass_serves_a_whole_micro_batch():
    # One pass per sample is how a log-prob worker becomes the slowest part of a step.
    (update,) = make_step(make_groups(), micro_batch_tokens=10_000).updates
    (micro,) = update.micro_batches
    counting = Counting(FrozenPolicy(tiny_model(torch.float32)))
    known = LogProbWorker(counting, name="copy").row_log_probs(update.micro_batches)
    assert counting.passes == 1 < len(micro.rows) == len(known)


def test_a_frozen_policy_stays_out_of_training():
    policy = FrozenPolicy(tiny_model(torch.float32))
    (update,) = make_step(make_groups()).updates
    with policy.running(), torch.enable_grad():
        out = policy.log_probs(policy.to_tensors(update.micro_batches[0]))
    assert not out.log_probs_R.requires_grad
    assert not any(param.requires_grad for param in policy._model.parameters())


@pytest.fixture
def quickstart_step():
    """The real model, and rows that its vocabulary holds."""
    section = ModelSection(device="cpu")
    step = make_step(make_groups(sizes=(3,)), algorithm=algorithm(kl_coef=0.1))
    return section, step, load_pretrained(section).model


def reference(model):
    return LogProbWorker(FrozenPolicy(model), name="reference policy")


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_penalty_begins_at_exactly_zero_and_holds_the_policy_back(estimator):
    """Two equal models differ by nothing, to the bit, before the first update.

    Fails if the reference is the trained model itself (stays 0), or is asked by other code (not 0).
    """

    def distance(kl_coef):
        model = tiny_model(torch.float32)
        section = algorithm(kl_coef=kl_coef, kl_estimator=estimator)
        trainer = Trainer(
            model,
            train=TrainSection(learning_rate=3e-3),
            algorithm=section,
            reference=reference(tiny_model(torch.float32)),
        )
        metrics = [
            trainer.step(make_step(make_groups(), algorithm=section)).result() for _ in range(4)
        ]
        return metrics

    weak, strong = distance(1e-6), distance(30.0)
    assert weak[0]["kl"] == strong[0]["kl"] == 0.0
    assert weak[0]["train/kl_loss"] == 0.0
    assert weak[-1]["kl"] > 1e-4
    assert strong[-1]["kl"] < weak[-1]["kl"]
    assert 0.0 < weak[-1]["train/kl_loss"] < 1e-6 * weak[-1]["kl"] * 100


def test_without_a_penalty_no_reference_is_loaded_or_asked(tmp_path):
    missing = ModelSection(path=str(tmp_path / "no such model"))
    assert load_reference(missing, algorithm()) is None

    class Refusing:
        def row_log_probs(self, micro_batches):
            raise AssertionError("asked")

    trainer = Trainer(
        tiny_model(torch.float32), train=TrainSection(), algorithm=algorithm(),
        reference=Refusing(),
    )  # fmt: skip
    assert "kl" not in trainer.step(make_step(make_groups())).result()


def test_a_reference_is_what_the_run_began_with_in_its_dtype(quickstart_step):
    # Loaded from the section of the run; a policy that has moved on is told apart from it.
    section, step, policy = quickstart_step
    worker = load_reference(section, algorithm(kl_coef=0.1))
    assert worker is not None
    micros = step.updates[0].micro_batches
    known = worker.row_log_probs(micros)
    again = LogProbWorker(FrozenPolicy(policy), name="copy").row_log_probs(micros)
    assert all(np.array_equal(known[key], again[key]) for key in known)
    with torch.no_grad():
        policy.model.norm.weight.mul_(1.5)
    moved = LogProbWorker(FrozenPolicy(policy), name="copy").row_log_probs(micros)
    assert not any(np.array_equal(known[key], moved[key]) for key in known)


def test_rows_the_reference_does_not_know_are_named():
    section = algorithm(kl_coef=0.1)
    step = make_step(make_groups(), algorithm=section)
    key = step.updates[0].micro_batches[0].rows[1]

    class Forgetful:
        def __init__(self, keep):
            self.keep = keep

        def row_log_probs(self, micro_batches):
            known = dict(reference(tiny_model(torch.float32)).row_log_probs(micro_batches))
            known[key] = known[key][: self.keep]
            return {k: v for k, v in known.items() if k != key or self.keep}

    for keep, got in ((0, "nothing"), (1, "1 numbers")):
        trainer = Trainer(
            tiny_model(torch.float32), train=TrainSection(), algorithm=section,
            reference=Forgetful(keep),
        )  # fmt: skip
        with pytest.raises(TrainError, match=rf"{got}.* for row {key.rollout_id}\[0\]"):
            trainer.step(step)


def test_a_reference_that_gives_nan_is_refused_by_name():
    section, broken = algorithm(kl_coef=0.1), tiny_model(torch.float32)
    with torch.no_grad():
        broken.model.norm.weight[0] = float("nan")
    trainer = Trainer(
        tiny_model(torch.float32), train=TrainSection(), algorithm=section,
        reference=reference(broken),
    )  # fmt: skip
    with pytest.raises(TrainError, match="the reference policy gives a log-probability of nan"):
        trainer.step(make_step(make_groups(), algorithm=section))


def test_old_log_probs_find_their_rows_in_another_packing():
    # A second epoch packs other rows together. Fails if the numbers are kept by position.
    known = LogProbWorker(FrozenPolicy(tiny_model()), name="copy").row_log_probs(
        make_step(make_groups(), micro_batch_tokens=48).updates[0].micro_batches
    )
    (packed,) = make_step(make_groups()[::-1], micro_batch_tokens=10_000).updates[0].micro_batches
    backend = Recording(tiny_model())
    like = torch.zeros(1, dtype=torch.float64)
    with backend.running():
        want = backend.log_probs(backend.to_tensors(packed)).log_probs_R.detach()
    got = in_batch_order(known, packed, like=like, policy="copy")
    assert torch.allclose(got, want, rtol=1e-12)
    spoiled = replace(packed, row_R=np.zeros_like(packed.row_R))
    with pytest.raises(TrainError, match="expected one for each"):
        in_batch_order(known, spoiled, like=like, policy="copy")
