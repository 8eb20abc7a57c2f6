"""Ranks that prepared their own shares make the updates of one process with the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.batch.records import StepBatch
from agentrl.errors import TrainError
from agentrl.train.backends.choose import make_backend
from agentrl.train.failed_step import load_failed_step
from agentrl.train.trainer import Trainer
from agentrl.types import TrajectoryGroup
from tests.batch.random_groups import random_groups
from tests.batch.shares import in_shares
from tests.train.backends.sharded_trainers import KINDS, needs, section
from tests.train.backends.sharded_trainers import train_alone as sharded_alone
from tests.train.backends.sharded_trainers import train_together as sharded_together
from tests.train.backends.test_data_parallel import (
    TRAIN,
    OneOfMany,
    Solo,
    made_trainer,
    result_of,
    same_bits,
    train_alone,
    with_unused,
)
from tests.train.crew import joined
from tests.train.tiny_llama import (
    MODES,
    algorithm,
    make_groups,
    make_step,
    relative_error,
    tiny_model,
)

pytestmark = pytest.mark.slow


def keep_only(backend: Any) -> None:
    """Gradients of all updates are those of the first weights."""
    backend.step = lambda **_: backend.kept.append(
        {name: grad.clone() for name, grad in backend.gradients()}
    )


def train_share(
    address: str, rank: int, world_size: int, steps: Any, algorithm: Any, still: bool, record: bool
) -> dict[str, Any]:
    """One rank's part; `steps` holds by step the batches by rank."""
    ranks = joined(address, rank, world_size)
    model = with_unused(tiny_model(torch.float64))
    backend = OneOfMany(model, ranks)
    if still:
        keep_only(backend)
    trainer = made_trainer(model, backend, algorithm, torch.float64)
    rows: list[Any] = []
    if record:
        trainer._recorder._listener = lambda step, rank, found: rows.extend(
            (row.rollout_id, row.row_index, row.updates, row.log_probs) for row in found
        )
    try:
        metrics = [trainer.step(parts[rank]).result() for parts in steps]
        tokens = [trainer._tokens(parts[rank].updates) for parts in steps]
    finally:
        ranks.close()
    return {**result_of(model, backend, trainer, metrics), "rows": rows, "tokens": tokens}


def alone_still(steps: Sequence[StepBatch], algorithm: Any) -> dict[str, Any]:
    model = with_unused(tiny_model(torch.float64))
    backend = Solo(model)
    keep_only(backend)
    trainer = made_trainer(model, backend, algorithm, torch.float64)
    return result_of(model, backend, trainer, [trainer.step(step).result() for step in steps])


def one_huge(seed: int) -> list[TrajectoryGroup]:
    """One rollout is longer than all others together."""
    groups = make_groups(seed, sizes=(4, 3))
    first = groups[0].trajectories[0]
    times = 12
    long = replace(
        first,
        response_ids=first.response_ids * times,
        response_mask=first.response_mask * times,
        rollout_log_probs=first.rollout_log_probs * times,
        policy_versions=first.policy_versions * times,
        reward=4.0,
    )
    rows = (long, *groups[0].trajectories[1:])
    return [replace(groups[0], trajectories=rows), *groups[1:]]


def mostly_flat(seed: int) -> list[TrajectoryGroup]:
    """One group of four has a gradient: with three ranks, one may have nothing to do."""
    return [
        replace(g, trajectories=tuple(replace(t, reward=t.reward and 1.0) for t in g.trajectories))
        if index
        else g
        for index, g in enumerate(make_groups(seed))
    ]


GROUPS = {
    "mixed": make_groups,
    "rows and turns": random_groups,
    "huge": one_huge,
    "flat": mostly_flat,
    "one rollout": lambda seed: [
        replace(g, trajectories=tuple(replace(t, reward=float(not i)) for i, t in enumerate(rows)))
        for g in make_groups(seed, sizes=(2,))
        for rows in [g.trajectories[:2]]
    ],
}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("mixed", {}, {}),
    "grpo-packed": (
        "mixed",
        {"advantage_estimator": "group_norm"},
        {"micro_batch_tokens": 10_000, "prefix_sharing": True},
    ),
    "rloo-turns": (
        "rows and turns",
        {"advantage_estimator": "rloo", "turn_rewards": "return_to_go"},
        {"minibatches": 2, "oldest_version": 2},
    ),
    "kl-epochs": (
        "rows and turns",
        {"old_log_probs": "decoupled", "kl_coef": 0.3, "kl_estimator": "k2"},
        {"epochs": 2, "minibatches": 2},
    ),
    "huge": ("huge", {}, {"micro_batch_tokens": 512}),
    "flat": ("flat", {"old_log_probs": "recompute"}, {"minibatches": 2}),
    "one rollout": ("one rollout", {}, {}),
    "skipped": ("mixed", {}, {"skip_groups": {"g1": "too_easy"}}),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_shares_add_up_to_those_of_the_whole(crew, case):
    """Fails if shares are divided again by rank, if a rank takes its own counts, if a rank with
    nothing to do stays away, and if metrics are those of one rank."""
    kind, changes, cut = CASES[case]
    spec = algorithm(loss_agg_mode=MODES[list(CASES).index(case) % len(MODES)], **changes)
    cut = {"algorithm": spec, "micro_batch_tokens": 64, "seed": 0, **cut}
    groups = [GROUPS[kind](seed) for seed in (0, 1)]
    whole = [make_step(made, **cut) for made in groups]
    still, moving = alone_still(whole, spec), train_alone(whole, spec)
    assert len(still["gradients"]) >= 1
    for world_size in (2, 3):
        steps = [
            in_shares(made, ranks=world_size, first_holds_all=world_size == 3, **cut)
            for made in groups
        ]
        ranks = crew.run(world_size, train_share, steps, spec, True, False)
        for rank in ranks:
            assert len(rank["gradients"]) == len(still["gradients"])
            for ours, theirs in zip(rank["gradients"], still["gradients"], strict=True):
                assert relative_error(ours, theirs) < 1e-12
            assert rank["metrics"] == ranks[0]["metrics"]
            assert rank["tokens"] == [sum(p.num_tokens for p in parts) for parts in steps]
        for ours, theirs in zip(ranks[0]["metrics"], still["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)
        ranks = crew.run(world_size, train_share, steps, spec, False, False)
        assert all(same_bits(rank["weights"], ranks[0]["weights"]) for rank in ranks)
        assert relative_error(ranks[0]["weights"], moving["weights"]) < 1e-9


def test_every_row_is_recorded_once_by_whoever_trains_it_last(crew):
    """Fails if a rank knows only its own updates: a row that moves would be recorded twice."""
    spec = algorithm(old_log_probs="decoupled")
    cut = {
        "algorithm": spec, "micro_batch_tokens": 64, "seed": 3, "epochs": 3, "minibatches": 3,
    }  # fmt: skip
    groups = random_groups(5, sizes=(4,) * 9)
    (alone,) = crew.run(1, train_share, [[make_step(groups, **cut)]], spec, True, True)
    steps = [in_shares(groups, ranks=3, first_holds_all=True, **cut)]
    moved = [{key for u in part.updates for m in u.micro_batches for key in m.rows}
             for part in steps[0]]  # fmt: skip
    assert moved[0] & moved[1]
    ranks = crew.run(3, train_share, steps, spec, True, True)
    ours = sorted(row[:3] for rank in ranks for row in rank["rows"])
    assert ours == sorted(row[:3] for row in alone["rows"])
    assert ours


@pytest.mark.parametrize(
    ("groups", "kind"),
    [("mixed", "fsdp2"), ("mixed", "zero2"), ("mixed", "zero3"), ("one rollout", "zero3")],
)
def test_ranks_in_lockstep_pad_their_shares(crew, kind, groups):
    """Fails (hangs) if a rank makes as many passes as its own share has micro-batches."""
    needs(kind)
    spec = algorithm(kl_coef=0.1)
    cut = {"algorithm": spec, "micro_batch_tokens": 24, "seed": 0, "epochs": 2}
    made = GROUPS[groups](1)
    whole = [make_step(made, **cut)]
    options = {"train": section(**KINDS[kind]), "algorithm": spec}
    alone = sharded_alone(whole, torch.float32, dict(options))
    parts = in_shares(made, ranks=3, **cut)
    assert len({len(part.updates[0].micro_batches) for part in parts}) > 1
    ranks = crew.run(3, lockstep_share, parts, dict(options))
    assert relative_error(ranks[0]["gradients"][0], alone["gradients"][0]) < 1e-5
    assert all(rank["metrics"] == ranks[0]["metrics"] for rank in ranks)
    for ours, theirs in zip(ranks[0]["metrics"], alone["metrics"], strict=True):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-4)


def lockstep_share(address, rank, world_size, parts, options):
    return sharded_together(address, rank, world_size, [parts[rank]], torch.float32, options)


def refuse(address, rank, world_size, parts, kind, failures):
    ranks = joined(address, rank, world_size)
    try:
        model = tiny_model(torch.float32)
        train = section(**KINDS[kind]) if kind else TRAIN
        backend = make_backend(model, train=train, gradient_checkpointing=False, ranks=ranks)
        trainer = Trainer(
            model, train=train, algorithm=algorithm(), backend=backend, failures=failures
        )
        with pytest.raises(TrainError) as caught:
            trainer.step(parts[rank])
        return str(caught.value)
    finally:
        ranks.close()


def test_shares_of_other_plans_are_refused(crew):
    """Fails if counts alone are compared: both plans have the same."""
    cut = {"algorithm": algorithm(), "micro_batch_tokens": 64, "seed": 0}
    groups = make_groups(sizes=(4, 4, 4, 4))
    one = in_shares(groups, ranks=2, **cut)
    other = in_shares(groups, ranks=2, first_holds_all=True, **cut)
    assert one[0].updates[0].global_tokens == other[0].updates[0].global_tokens
    for message in crew.run(2, refuse, [one[0], other[1]], None, None):
        assert "rank 1 holds another batch than rank 0" in message
    lost = replace(
        one[1],
        updates=(replace(one[1].updates[0], micro_batches=one[1].updates[0].micro_batches[1:]),),
    )
    for message in crew.run(2, refuse, [one[0], lost], None, None):
        assert "update 0: the shares of 2 ranks hold" in message


def spoiled(batch: StepBatch) -> tuple[StepBatch, Any]:
    """The same share with an infinite advantage in one row."""
    (update,) = batch.updates
    first, *others = update.micro_batches
    advantages = np.where(first.row_R == 0, np.inf, first.advantages_R)
    changed = (replace(first, advantages_R=advantages), *others)
    return replace(batch, updates=(replace(update, micro_batches=changed),)), first.rows[0]


@pytest.mark.parametrize("kind", [None, "fsdp2"])
def test_a_row_without_finite_gradient_is_named_by_all_and_the_step_is_kept(crew, kind, tmp_path):
    """Fails if ranks in lock-step try other rows than their own at the same time, if only the
    share of rank 0 is kept, and if what is kept is not the step."""
    cut = {"algorithm": algorithm(), "micro_batch_tokens": 32, "seed": 0}
    groups = make_groups(sizes=(4, 4, 4))
    parts = in_shares(groups, ranks=2, **cut)
    parts[1], bad = spoiled(parts[1])
    messages = crew.run(2, refuse, parts, kind, tmp_path)
    assert all(f"not finite: {bad};" in message for message in messages)
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == [f"failed-step-1.part-{n}-of-2.pt" for n in range(2)]
    assert all(str(path) in text for path, text in zip(paths, messages, strict=True))
    kept = load_failed_step(paths[1]).batch
    model = tiny_model(torch.float32)
    trainer = Trainer(model, train=TRAIN, algorithm=algorithm())
    with pytest.raises(TrainError, match="not finite") as again:
        trainer.step(kept)
    assert f"not finite: {bad};" in str(again.value)
    paths[0].unlink()
    with pytest.raises(Exception, match=r"failed-step-1\.part-0-of-2\.pt is not there"):
        load_failed_step(paths[1])
