"""Ranks that train together fail together: no rank waits for one that has given up."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.config.schema import TrainSection
from agentrl.errors import RanksParted, TrainError
from agentrl.train.backends.data_parallel import DataParallelBackend
from agentrl.train.backends.ranks import Meeting
from agentrl.train.backends.shares import assign
from agentrl.train.trainer import Trainer
from tests.train.crew import Crew, joined
from tests.train.tiny_llama import algorithm, make_groups, make_step, tiny_model

TRAIN = TrainSection(learning_rate=1e-2)


def backend_of(model, ranks, kind=DataParallelBackend):
    return kind(model, train=TRAIN, gradient_checkpointing=False, ranks=ranks)


def train_on_bad_rows(address, rank, world_size, bad, good, temperature):
    """What a rank says about a batch that cannot be trained on, and whether it goes on."""
    ranks = joined(address, rank, world_size)
    model = tiny_model(torch.float32)
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    trainer = Trainer(
        model,
        train=TRAIN,
        algorithm=algorithm(),
        backend=backend_of(model, ranks),
        temperature=temperature,
    )
    try:
        with pytest.raises(TrainError) as caught:
            trainer.step(bad)
        moved = any(not torch.equal(param, before[n]) for n, param in model.named_parameters())
        metrics = trainer.step(good).result()
    finally:
        ranks.close()
    return str(caught.value), moved, metrics["train/grad_norm"]


def spoiled(step, name, value, *, rank):
    """The same step with a number replaced in one row, of those that `rank` of three gets."""
    (update,) = step.updates
    bad = assign(update.micro_batches, 3)[rank][0].rows[0]
    micros = []
    for micro in update.micro_batches:
        if bad in micro.rows:
            index = micro.rows.index(bad)
            if name == "temperature_N":
                chosen = np.arange(len(micro.rows)) == index
            else:
                chosen = micro.row_R == index
            micro = replace(micro, **{name: np.where(chosen, value, getattr(micro, name))})
        micros.append(micro)
    return replace(step, updates=(replace(update, micro_batches=tuple(micros)),)), bad


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
    bad, row = spoiled(good, "temperature_N", 0.7, rank=1)
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
            backend_of(tiny_model(torch.float32, seed=rank), ranks)
    finally:
        ranks.close()
    return "refused"


def take_other_batches(address, rank, world_size, steps):
    ranks = joined(address, rank, world_size)
    model = tiny_model(torch.float32)
    trainer = Trainer(model, train=TRAIN, algorithm=algorithm(), backend=backend_of(model, ranks))
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


def die_in_the_middle(address, rank, world_size, step, timeout_s, how):
    """Rank 1 ends, or hangs, before its gradients are summed."""

    class Ending(DataParallelBackend):
        def reduce_gradients(self):
            if rank == 1:
                os._exit(9) if how == "end" else time.sleep(timeout_s + 3)
            super().reduce_gradients()

    model = tiny_model(torch.float32)
    ranks = joined(address, rank, world_size, timeout_s)
    trainer = Trainer(
        model, train=TRAIN, algorithm=algorithm(), backend=backend_of(model, ranks, Ending)
    )
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


def test_a_meeting_listens_only_where_it_was_asked_to():
    """Fails if any host that reaches this one may join or stop the ranks, whose objects are
    pickled."""
    meeting = Meeting()
    port = int(meeting.address.rpartition(":")[2])
    tables = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    rows = [row.split() for row in tables.splitlines()]
    where = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    assert where == [f"0100007F:{port:04X}"]


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


def test_memory_that_runs_out_is_no_parting_of_the_ranks():
    """Fails if the batch that is too large for one rank is taken for the death of another."""
    meeting = Meeting()
    ranks = joined(meeting.address, 0, 1)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="tried to allocate"):
            with ranks.naming("summing gradients"):
                raise torch.OutOfMemoryError("CUDA out of memory: tried to allocate 9 GiB")
        with pytest.raises(RanksParted, match="summing gradients"):
            with ranks.naming("summing gradients"):
                raise RuntimeError("Connection closed by peer")
    finally:
        ranks.close()
        meeting.close()
