"""Sharded ranks with too few rows, with rows that cannot be trained on, and with lost peers."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from agentrl.config import parse_config
from agentrl.errors import ConfigError, TrainError
from agentrl.train.backends.agreement import check_shares, on_every_rank
from agentrl.train.backends.choose import make_backend
from agentrl.train.backends.ranks import Meeting
from agentrl.train.trainer import Trainer
from tests.train.backends.sharded_trainers import (
    KINDS,
    algorithm,
    needs,
    section,
    train_alone,
    train_together,
)
from tests.train.crew import Crew, joined
from tests.train.tiny_llama import make_groups, make_step, relative_error, tiny_model

pytestmark = pytest.mark.slow

FEW = ["fsdp2", "zero2", "zero3"]


@pytest.mark.parametrize("kind", FEW)
def test_a_rank_without_rows_takes_part_and_weighs_nothing(crew, kind):
    """Fails (hangs) if it makes no passes, and if its padding has a gradient."""
    needs(kind)
    steps = [make_step(make_groups(sizes=(2,)), micro_batch_tokens=10_000)]
    options = {"train": section(**KINDS[kind]), "algorithm": algorithm()}
    alone = train_alone(steps, torch.float32, dict(options))
    ranks = crew.run(3, train_together, steps, torch.float32, dict(options))
    assert relative_error(ranks[0]["gradients"][0], alone["gradients"][0]) < 1e-6
    assert ranks[0]["metrics"] == ranks[2]["metrics"]


def spoiled(step):
    """The same step with an infinite advantage in one row."""
    (update,) = step.updates
    first, *others = update.micro_batches
    advantages = np.where(first.row_R == 0, np.inf, first.advantages_R)
    changed = (replace(first, advantages_R=advantages), *others)
    return replace(step, updates=(replace(update, micro_batches=changed),)), first.rows[0]


def train_on_a_bad_row(address, rank, world_size, kind, bad, good):
    ranks = joined(address, rank, world_size)
    try:
        model = tiny_model(torch.float32)
        train = section(**KINDS[kind])
        backend = make_backend(model, train=train, gradient_checkpointing=False, ranks=ranks)
        trainer = Trainer(model, train=train, algorithm=algorithm(), backend=backend)
        before = {name: tensor.clone() for name, tensor in backend.weights()}
        with pytest.raises(TrainError) as caught:
            trainer.step(bad)
        moved = any(not torch.equal(tensor, before[n]) for n, tensor in backend.weights())
        return str(caught.value), moved, trainer.step(good).result()["train/grad_norm"]
    finally:
        ranks.close()


@pytest.mark.parametrize("kind", FEW)
def test_a_gradient_that_is_not_finite_moves_no_weight_and_names_its_row(crew, kind):
    """Fails if the engine's own step decides, if the spoiled sum stays for the next update, and if
    every rank blames the row of its own turn."""
    needs(kind)
    good = make_step(make_groups(), micro_batch_tokens=32)
    bad, row = spoiled(good)
    answers = crew.run(2, train_on_a_bad_row, kind, bad, good)
    alone = train_alone([good], torch.float32, {"train": section(), "algorithm": algorithm()})
    assert len({message for message, _, _ in answers}) == 1
    assert f"not finite: {row};" in answers[0][0]
    assert not any(moved for _, moved, _ in answers)
    norm = alone["metrics"][0]["train/grad_norm"]
    assert [found for _, _, found in answers] == pytest.approx([norm, norm], rel=1e-5)


def fail_between_passes(address, rank, world_size, kind, step):
    """Rank 1 gives up after its first forward pass; what every rank says, and the time it took."""
    ranks = joined(address, rank, world_size)
    try:
        train = section(**KINDS[kind])
        backend = make_backend(
            tiny_model(torch.float32), train=train, gradient_checkpointing=False, ranks=ranks
        )
        part = backend.share(step.updates[0])

        def work():
            for micro in part.micro_batches:
                out = backend.log_probs(backend.to_tensors(micro))
                if rank == 1:
                    raise ValueError("out of memory")
                backend.backward(out.log_probs_R.sum())

        began = time.monotonic()
        with backend.running(), pytest.raises((TrainError, ValueError)) as caught:
            on_every_rank(backend, work)
        return str(caught.value), time.monotonic() - began
    finally:
        ranks.close()


@pytest.mark.parametrize("kind", FEW)
def test_a_rank_that_fails_between_passes_is_noticed_at_once(crew, kind):
    """Fails (waits for the time limit of a collective) if only the end of the work is agreed on."""
    needs(kind)
    step = make_step(make_groups(), micro_batch_tokens=32)
    answers = crew.run(2, fail_between_passes, kind, step)
    assert [message for message, _ in answers] == [
        "1 of 2 ranks failed; rank 1: ValueError: out of memory",
        "out of memory",
    ]
    assert max(took for _, took in answers) < 90


def die_before_a_backward_pass(address, rank, world_size, kind, step, how):
    train = section(**KINDS[kind])
    ranks = joined(address, rank, world_size, 5.0)
    model = tiny_model(torch.float32)
    backend = make_backend(model, train=train, gradient_checkpointing=False, ranks=ranks)
    backward = backend.backward

    def dying(loss):
        if rank == 1:
            os._exit(9) if how == "end" else time.sleep(60)
        backward(loss)

    backend.backward = dying
    with pytest.raises(TrainError) as caught:
        Trainer(model, train=train, algorithm=algorithm(), backend=backend).step(step)
    return str(caught.value)


@pytest.mark.parametrize(("kind", "how"), [("fsdp2", "hang"), ("zero2", "end")])
def test_a_rank_that_is_lost_ends_the_step_of_the_others(kind, how):
    needs(kind)
    lost = Crew(2)
    try:
        meeting = Meeting()
        step = make_step(make_groups())
        for rank in range(2):
            lost.ask(rank, die_before_a_backward_pass, meeting.address, rank, 2, kind, step, how)
        message = lost.answer(0)
    finally:
        lost.close()
    assert "rank 0 of 2 failed while" in message
    assert "a rank that ended, hangs or was never started" in message


def join_with_an_empty_cache(address, rank, world_size, folder, step):
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    train_together(
        address,
        rank,
        world_size,
        [step],
        torch.float32,
        {"train": section(**KINDS["zero2-offload"]), "algorithm": algorithm()},
    )
    return list(folder.iterdir())


def test_starting_deepspeed_compiles_nothing(tmp_path):
    """Else a process killed while it compiles leaves a lock that every later start waits for."""
    needs("zero2")
    ranks = Crew(2)
    try:
        left = ranks.run(2, join_with_an_empty_cache, tmp_path, make_step(make_groups()))
        assert left == [[], []]
    finally:
        ranks.close()


def begin_apart(address, rank, world_size):
    ranks = joined(address, rank, world_size)
    try:
        with pytest.raises(TrainError, match="rank 1 holds other weights than rank 0"):
            make_backend(
                tiny_model(torch.float32, seed=rank),
                train=section(backend="fsdp2"),
                gradient_checkpointing=False,
                ranks=ranks,
            )
    finally:
        ranks.close()
    return "refused"


def test_slices_of_different_models_are_refused(crew):
    # They would make one model that nobody had.
    assert crew.run(2, begin_apart) == ["refused"] * 2


def lose_a_row(address, rank, world_size, step):
    ranks = joined(address, rank, world_size)
    try:
        backend = make_backend(
            tiny_model(torch.float32), train=section(), gradient_checkpointing=False, ranks=ranks
        )
        shares = [backend.share(update) for update in step.updates]
        check_shares(backend, step.updates, shares)
        if rank == 0:
            shares = [replace(p, micro_batches=p.micro_batches[1:]) for p in shares]
        with pytest.raises(TrainError, match=r"update 0: the shares of 2 ranks hold .* together"):
            check_shares(backend, step.updates, shares)
    finally:
        ranks.close()
    return "refused"


def test_shares_that_are_not_the_whole_are_refused(crew):
    step = make_step(make_groups(), micro_batch_tokens=32)
    assert crew.run(2, lose_a_row, step) == ["refused"] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"backend": {"kind": "deepspeed", "zero_stage": 0, "offload": True}},
            "ZeRO 0 offloads nothing",
        ),
        ({"backend": "deepspeed"}, "needs a group of ranks"),
    ],
)
def test_settings_that_do_not_go_together_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_backend(
            tiny_model(torch.float32),
            train=section(**changes),
            gradient_checkpointing=False,
            ranks=None,
        )


def test_gradients_are_not_added_up_in_bfloat16():
    """Fails if the model's own dtype is not looked at: a config may say another."""
    train = section(backend={"kind": "deepspeed", "zero_stage": 0})
    with pytest.raises(ConfigError, match="adds gradients up in bfloat16"):
        make_backend(
            tiny_model(torch.bfloat16), train=train, gradient_checkpointing=False, ranks=None
        )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["train.backend=fsdp2"], "runtime is local"),
        (["train.backend=deepspeed", "runtime=ray"], "serving.engine embedded samples"),
    ],
)
def test_a_model_that_is_cut_up_is_not_also_sampled_from(keys, message):
    minimal = {"env": {"target": "my_env.py:MyEnv"}, "dataset": {"source": "train.jsonl"}}
    with pytest.raises(ConfigError, match=message):
        parse_config(minimal, keys)
    whole = parse_config(minimal, [*keys, "runtime=ray", "serving.engine=vllm"])
    assert whole.train.backend != "torch"
