"""One, two or three real processes train the same model (DESIGN section 6, proof 1, over ranks)."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from crew import Crew, joined
from tiny_llama import (
    MODES,
    algorithm,
    make_groups,
    make_step,
    reference,
    relative_error,
    tiny_model,
)

from agentrl.config.schema import TrainSection
from agentrl.errors import TrainError
from agentrl.train.data_parallel import DataParallelBackend
from agentrl.train.ranks import Meeting
from agentrl.train.routing import assign
from agentrl.train.torch_backend import TorchBackend
from agentrl.train.trainer import Trainer

TRAIN = TrainSection(learning_rate=1e-2, weight_decay=0.1, max_grad_norm=0.5)
PLACE_AND_TIME = {"train/tokens_per_second"}


@pytest.fixture(scope="module")
def crew():
    made = Crew(3)
    yield made
    made.close()


class Keeping:
    """Mixed into a backend: remembers the gradient of every update that is made."""

    def step(self, *, learning_rate, grad_norm):
        self.kept.append({name: grad.clone() for name, grad in self.gradients()})
        super().step(learning_rate=learning_rate, grad_norm=grad_norm)


class Solo(Keeping, TorchBackend):
    def __init__(self, model):
        super().__init__(model, train=TRAIN, gradient_checkpointing=False)
        self.kept = []


class OneOfMany(Keeping, DataParallelBackend):
    def __init__(self, model, ranks):
        super().__init__(model, train=TRAIN, gradient_checkpointing=False, ranks=ranks)
        self.kept = []


class LocalCounts(OneOfMany):
    """Broken on purpose: divides by the tokens of its own share, then averages over the ranks."""

    def share(self, update):
        part = super().share(update)
        own = sum(micro.num_action_tokens for micro in part.micro_batches)
        factor = update.global_tokens / max(own, 1) / self._ranks.world_size
        return replace(
            part,
            micro_batches=tuple(
                replace(micro, weights_R=micro.weights_R * factor) for micro in part.micro_batches
            ),
        )


def with_unused(model):
    """A parameter that no row ever reaches, as an expert that no token is sent to."""
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(3, dtype=model.dtype)))
    return model


def result_of(model, backend, trainer, metrics):
    return {
        "gradients": backend.kept,
        "weights": {name: param.detach().clone() for name, param in model.named_parameters()},
        "metrics": [{k: v for k, v in m.items() if k not in PLACE_AND_TIME} for m in metrics],
        "version": trainer.version,
    }


def made_trainer(model, backend, section, dtype):
    return Trainer(
        model,
        train=TRAIN,
        algorithm=section,
        backend=backend,
        reference=reference(dtype=dtype) if section.kl_coef else None,
    )


def train(address, rank, world_size, steps, section, dtype=torch.float64, broken=False):
    ranks = joined(address, rank, world_size)
    model = with_unused(tiny_model(dtype))
    backend = (LocalCounts if broken else OneOfMany)(model, ranks)
    trainer = made_trainer(model, backend, section, dtype)
    try:
        metrics = [trainer.step(step).result() for step in steps]
    finally:
        ranks.close()
    return result_of(model, backend, trainer, metrics)


def train_alone(steps, section, dtype=torch.float64):
    model = with_unused(tiny_model(dtype))
    backend = Solo(model)
    trainer = made_trainer(model, backend, section, dtype)
    return result_of(model, backend, trainer, [trainer.step(step).result() for step in steps])


def same_bits(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in theirs)


CASES = {
    "rollout": ({}, {}),
    "recompute-kl": ({"old_log_probs": "recompute", "kl_coef": 0.3}, {"minibatches": 2}),
    "decoupled-epochs": ({"old_log_probs": "decoupled"}, {"epochs": 2}),
    "all": (
        {"old_log_probs": "decoupled", "kl_coef": 0.3, "kl_estimator": "k2"},
        {"epochs": 2, "minibatches": 2},
    ),
    "idle-ranks": ({}, {"micro_batch_tokens": 10_000}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", MODES[:2])
def test_any_number_of_ranks_makes_the_same_updates(crew, case, mode):
    """Fails if gradients are averaged, if a rank that has no micro-batch stays away, if old
    log-probs are kept to the rank that made them, and if a parameter without a gradient decays.
    """
    changes, cut = CASES[case]
    section = algorithm(loss_agg_mode=mode, **changes)
    cut = {"micro_batch_tokens": 32, **cut}
    steps = [make_step(make_groups(seed), algorithm=section, **cut) for seed in (0, 1)]
    alone = train_alone(steps, section)
    for world_size in (1, 2, 3):
        ranks = crew.run(world_size, train, steps, section)
        assert all(same_bits(rank["weights"], ranks[0]["weights"]) for rank in ranks)
        assert all(rank["metrics"] == ranks[0]["metrics"] for rank in ranks)
        first = ranks[0]
        assert len(first["gradients"]) == len(alone["gradients"]) > 1
        for ours, theirs in zip(first["gradients"], alone["gradients"], strict=True):
            assert relative_error(ours, theirs) < 1e-9
        assert relative_error(first["weights"], alone["weights"]) < 1e-9
        assert torch.equal(first["weights"]["unused"], torch.ones(3, dtype=torch.float64))
        for ours, theirs in zip(first["metrics"], alone["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_in_narrow_types_the_ranks_stay_equal_to_the_bit(crew, dtype):
    section = algorithm(kl_coef=0.1)
    steps = [make_step(make_groups(seed), algorithm=section) for seed in range(3)]
    ranks = crew.run(3, train, steps, section, dtype)
    assert all(same_bits(rank["weights"], ranks[0]["weights"]) for rank in ranks)
    alone = train_alone(steps, section, dtype)
    assert relative_error(ranks[0]["gradients"][0], alone["gradients"][0]) < 5e-3
    assert ranks[0]["version"] == alone["version"] == 3


def test_denominators_of_a_rank_of_its_own_give_another_gradient(crew):
    # The comparison must be able to fail: this is the bug that most peers had at some time.
    section = algorithm(loss_agg_mode="token-mean")
    steps = [make_step(make_groups(), algorithm=section, micro_batch_tokens=32)]
    alone = train_alone(steps, section)["gradients"][0]
    ranks = crew.run(2, train, steps, section, torch.float64, True)
    assert relative_error(ranks[0]["gradients"][0], alone) > 1e-3


def train_on_bad_rows(address, rank, world_size, bad, good, temperature):
    """What a rank says about a batch that cannot be trained on, and whether it goes on."""
    ranks = joined(address, rank, world_size)
    model = tiny_model(torch.float32)
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    backend = DataParallelBackend(model, train=TRAIN, gradient_checkpointing=False, ranks=ranks)
    trainer = Trainer(
        model, train=TRAIN, algorithm=algorithm(), backend=backend, temperature=temperature
    )
    try:
        with pytest.raises(TrainError) as caught:
            trainer.step(bad)
        moved = not same_bits(dict(model.named_parameters()), before)
        metrics = trainer.step(good).result()
    finally:
        ranks.close()
    return str(caught.value), moved, metrics["train/grad_norm"]


def spoiled(step, name, value, *, rank):
    """The same step with a number replaced in one row, of those that `rank` of three gets."""
    (update,) = step.updates
    micros = list(update.micro_batches)
    place = assign(micros, 3)[rank][0]
    micro = micros[place]
    if name == "temperature_S":
        changed = np.where(np.arange(len(micro.rows)) == 0, value, micro.temperature_S)
    else:
        changed = np.where(micro.row_R == 0, value, getattr(micro, name))
    micros[place] = replace(micro, **{name: changed})
    return replace(step, updates=(replace(update, micro_batches=tuple(micros)),)), micro.rows[0]


def test_a_gradient_that_is_not_finite_is_given_up_by_all_ranks(crew):
    """Fails (others name no row, or hang) if only the rank that has the row looks for it."""
    good = make_step(make_groups(), micro_batch_tokens=32)
    bad, row = spoiled(good, "advantages_R", float("inf"), rank=2)
    answers = crew.run(3, train_on_bad_rows, bad, good, None)
    messages = {message for message, _, _ in answers}
    assert len(messages) == 1
    assert str(row) in messages.pop()
    assert not any(moved for _, moved, _ in answers)
    assert len({norm for _, _, norm in answers}) == 1


def test_a_rank_that_refuses_its_rows_takes_the_others_along(crew):
    good = make_step(make_groups(), micro_batch_tokens=32)
    bad, row = spoiled(good, "temperature_S", 0.7, rank=1)
    answers = crew.run(3, train_on_bad_rows, bad, good, 1.0)
    assert not any(moved for _, moved, _ in answers)
    own = [message for message, _, _ in answers if message.startswith("row ")]
    assert own == [f"row {row} was sampled at temperature 0.7, the trainer expects 1.0"]
    told = f"1 of 3 ranks failed; rank 1: TrainError: {own[0]}"
    assert [message for message, _, _ in answers] == [told, own[0], told]
    assert len({norm for _, _, norm in answers}) == 1


def begin_apart(address, rank, world_size):
    ranks = joined(address, rank, world_size)
    try:
        with pytest.raises(TrainError, match=r"rank 1 holds other weights.*model\.embed_tokens"):
            OneOfMany(tiny_model(torch.float32, seed=rank), ranks)
    finally:
        ranks.close()
    return "refused"


def take_other_batches(address, rank, world_size, steps):
    ranks = joined(address, rank, world_size)
    model = tiny_model(torch.float32)
    trainer = Trainer(model, train=TRAIN, algorithm=algorithm(), backend=OneOfMany(model, ranks))
    try:
        with pytest.raises(TrainError, match="rank 1 holds another batch than rank 0"):
            trainer.step(steps[rank])
    finally:
        ranks.close()
    return "refused"


def test_ranks_that_could_not_agree_are_refused(crew):
    # Both would train without an error, each its own model.
    assert crew.run(2, begin_apart) == ["refused"] * 2
    steps = [make_step(make_groups(seed)) for seed in (0, 1)]
    assert crew.run(2, take_other_batches, steps) == ["refused"] * 2


def resume(address, rank, world_size, folder, step):
    ranks = joined(address, rank, world_size)
    model = tiny_model(torch.float32, seed=5)
    trainer = Trainer(model, train=TRAIN, algorithm=algorithm(), backend=OneOfMany(model, ranks))
    try:
        trainer.load(folder)
        trainer.step(step)
    finally:
        ranks.close()
    return trainer.version, {name: tensor.clone() for name, tensor in trainer.weights()}


def test_what_one_process_saved_two_go_on_with(crew, tmp_path):
    model = tiny_model(torch.float32)
    trainer = Trainer(model, train=TRAIN, algorithm=algorithm())
    trainer.step(make_step(make_groups()))
    trainer.save(tmp_path)
    step = make_step(make_groups(1))
    (first, ours), (second, theirs) = crew.run(2, resume, tmp_path, step)
    assert first == second == 2
    assert same_bits(ours, theirs)
    trainer.step(step)
    assert relative_error(ours, dict(trainer.weights())) < 1e-4


def die_in_the_middle(address, rank, world_size, step, timeout_s, how):
    """Rank 1 ends, or hangs, before its gradients are summed."""

    class Ending(OneOfMany):
        def reduce_gradients(self):
            if rank == 1:
                os._exit(9) if how == "end" else time.sleep(timeout_s + 3)
            super().reduce_gradients()

    model = tiny_model(torch.float32)
    ranks = joined(address, rank, world_size, timeout_s)
    trainer = Trainer(model, train=TRAIN, algorithm=algorithm(), backend=Ending(model, ranks))
    with pytest.raises(TrainError) as caught:
        trainer.step(step)
    ranks.close()
    return str(caught.value)


@pytest.mark.parametrize("how", ["end", "hang"])
def test_a_rank_that_is_lost_ends_the_step_of_the_others(how):
    """Fails (hangs for the test's limit) without a time limit on the group."""
    lost = Crew(2)
    try:
        meeting = Meeting()
        step = make_step(make_groups())
        for rank in range(2):
            lost.ask(rank, die_in_the_middle, meeting.address, rank, 2, step, 3.0, how)
        message = lost.answer(0)
    finally:
        lost.close()
    assert "rank 0 of 2 failed while" in message
    assert "a rank that ended, hangs or was never started" in message


def test_a_meeting_that_nobody_holds_or_nobody_comes_to_is_an_error():
    meeting = Meeting()
    with pytest.raises(TrainError, match=r"rank 0 of 2 failed while meeting .* within 1 s"):
        joined(meeting.address, 0, 2, timeout_s=1.0)
    address = meeting.address
    meeting.close()
    with pytest.raises(TrainError, match="rank 1 of 2 failed while meeting"):
        joined(address, 1, 2, timeout_s=1.0)
    with pytest.raises(TrainError, match="rank 2 is not one of 2"):
        joined(address, 2, 2)


def gather_sizes(address, rank, world_size):
    ranks = joined(address, rank, world_size)
    try:
        values = ranks.gather({"rank": rank, "filler": "x" * (rank * 1000)})
        tensors = [torch.full((3, 2), rank + 1.0), torch.full((5,), rank + 1.0).double()]
        tensors += [torch.full((4, 4), rank + 1.0).t()[:, 1], torch.zeros(0)]
        ranks.sum_in_place(tensors)
    finally:
        ranks.close()
        ranks.close()
    return [len(value["filler"]) for value in values], [tensor.tolist() for tensor in tensors]


def test_values_of_any_size_and_tensors_of_any_kind_come_together(crew):
    for sizes, tensors in crew.run(3, gather_sizes):
        assert sizes == [0, 1000, 2000]
        assert tensors == [[[6.0, 6.0]] * 3, [6.0] * 5, [6.0] * 4, []]
