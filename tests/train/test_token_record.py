"""What the trainer notes of every token: the numbers of the update, and no bit of it changed."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from agentrl.batch.records import LossNeeds, StepBatch
from agentrl.config.schema import TrainSection
from agentrl.metrics.bag import MetricBag
from agentrl.metrics.names import is_of_machine
from agentrl.train.backends.choose import make_backend
from agentrl.train.losses import needs_of
from agentrl.train.token_record import TokenNumbers, TokenRecorder
from agentrl.train.trainer import Trainer
from agentrl.types import TrainedTokens, TrajectoryGroup
from tests.train.crew import joined
from tests.train.losses.test_custom import world_model
from tests.train.test_same_gradient import split_rows
from tests.train.tiny_llama import (
    algorithm,
    make_groups,
    make_step,
    reference,
    replaced,
    tiny_model,
    with_model_log_probs,
)

TRAIN = TrainSection(learning_rate=1e-2)
Told = list[tuple[int, int, Sequence[TrainedTokens]]]

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "updates": ({"old_log_probs": "recompute"}, {"epochs": 2, "minibatches": 2}),
    "rollout": ({"old_log_probs": "rollout"}, {"epochs": 2}),
    "corrected": ({"old_log_probs": "recompute", "is_correction_type": "tis"}, {"epochs": 2}),
    "penalty": ({"kl_coef": 0.3, "loss_agg_mode": "token-mean"}, {}),
    "gspo": ({"policy_loss": "gspo", "old_log_probs": "recompute"}, {"minibatches": 2}),
    "cispo": ({"policy_loss": "cispo"}, {"prefix_sharing": True}),
}


def listener(told: Told):
    def tell(step: int, rank: int, rows: Sequence[TrainedTokens]) -> None:
        told.append((step, rank, rows))

    return tell


def made(section, record=None, *, dtype=torch.float32, **more) -> Trainer:
    return Trainer(
        tiny_model(dtype),
        train=TRAIN,
        algorithm=section,
        reference=reference(dtype=dtype) if section.kl_coef else None,
        record=record,
        **more,
    )


def steps_of(section, cut, seeds=(0, 1)) -> list[StepBatch]:
    groups = [with_model_log_probs(tiny_model(), make_groups(s), noise=0.3) for s in seeds]
    # Some rollouts become several rows of a common beginning.
    return [
        make_step(split_rows(g, 0), algorithm=section, needs=needs_of(section), **cut)
        for g in groups
    ]


def shares(rows: Sequence[TrainedTokens]) -> float:
    return math.fsum(value for row in rows for value in row.loss)


@pytest.mark.parametrize("case", CASES)
def test_training_is_the_same_to_the_bit_with_and_without(case: str) -> None:
    changes, cut = CASES[case]
    section = algorithm(**changes)
    steps = steps_of(section, cut)
    told: Told = []
    plain, noting = made(section), made(section, listener(told))
    for step in steps:
        wanted, found = plain.step(step).result(), noting.step(step).result()
        assert found.pop("record/failures") == 0.0
        for name in wanted:
            if is_of_machine(name):
                continue
            assert found[name] == wanted[name], name
    for (name, ours), (_, theirs) in zip(noting.weights(), plain.weights(), strict=True):
        assert torch.equal(ours, theirs), name
    assert [(step, rank) for step, rank, _ in told] == [(1, 0), (2, 0)]


@pytest.mark.parametrize("case", CASES)
def test_every_computed_row_is_told_once_with_its_tokens(case: str) -> None:
    """Fails if a row of the first epoch is told twice or not at all, or if rows that share a
    prefix get each other's tokens."""
    changes, cut = CASES[case]
    section = algorithm(**changes)
    (step,) = steps_of(section, cut, seeds=(0,))
    told: Told = []
    made(section, listener(told)).step(step)
    ((_, _, rows),) = told
    found = {(row.rollout_id, row.row_index): row for row in rows}
    assert len(found) == len(rows) > 5
    expected: dict[tuple[str, int], list[Any]] = {}
    for update in step.updates:
        for micro in update.micro_batches:
            for index, key in enumerate(micro.rows):
                at = micro.row_R == index
                expected.setdefault((key.rollout_id, key.row_index), []).append(
                    (micro.mask_R[at], micro.advantages_R[at])
                )
    assert found.keys() == expected.keys()
    for name, seen in expected.items():
        mask, advantages = seen[-1]
        row = found[name]
        assert row.updates == len(seen)
        assert list(row.trained) == mask.tolist()
        assert list(row.advantages) == pytest.approx((advantages * mask).tolist())
        for values in (row.old_log_probs, row.log_probs, row.entropy, row.loss, row.clip):
            assert len(values) == len(mask)
            assert all(v == 0 for v, m in zip(values, mask, strict=True) if not m)


@pytest.mark.parametrize("case", ["plain", "penalty", "corrected"])
def test_shares_of_the_tokens_add_up_to_the_loss(case: str) -> None:
    """Of a step with one update; fails if the correction, a weight or the penalty is left out."""
    section = algorithm(**CASES[case][0])
    (step,) = (replace(s, untrained=None) for s in steps_of(section, {}, seeds=(0,)))
    told: Told = []
    metrics = made(section, listener(told), dtype=torch.float64).step(step).result()
    ((_, _, rows),) = told
    assert shares(rows) == pytest.approx(metrics["train/loss"], rel=1e-5)
    assert abs(metrics["train/loss"]) > 1e-3
    tokens = [value for row in rows for value in row.entropy]
    trained = sum(sum(row.trained) for row in rows)
    assert math.fsum(tokens) / trained == pytest.approx(metrics["entropy"], rel=1e-5)
    if case == "corrected":
        weights = [w for r in rows for w, t in zip(r.correction, r.trained, strict=True) if t]
        assert math.fsum(weights) / trained == pytest.approx(
            metrics["sampling/importance_sampling_ratio/mean"], rel=1e-5
        )
    if case == "penalty":
        assert all(row.ref_log_probs is not None for row in rows)
        assert rows[0].ref_log_probs != rows[0].log_probs


@pytest.mark.parametrize("old", ["recompute", "rollout"])
def test_the_old_policy_is_the_one_before_the_step_and_the_other_that_of_the_last_update(
    old: str,
) -> None:
    """Fails if the numbers are those of the first update, or the old ones of the last."""
    section = algorithm(old_log_probs=old)
    (once,) = steps_of(section, {}, seeds=(0,))
    (thrice,) = steps_of(section, {"epochs": 3}, seeds=(0,))
    told: Told = []
    made(section, listener(told)).step(once)
    made(section, listener(told)).step(thrice)
    first, last = ({(r.rollout_id, r.row_index): r for r in rows} for _, _, rows in told)
    moved = 0.0
    for key, row in last.items():
        assert row.updates == 3
        assert list(row.old_log_probs) == pytest.approx(list(first[key].log_probs), abs=1e-5)
        moved += sum(abs(a - b) for a, b in zip(row.log_probs, row.old_log_probs, strict=True))
    assert moved > 0.1


def test_clip_says_which_bound_held() -> None:
    section = algorithm(old_log_probs="rollout", eps_clip_low=0.05, eps_clip_high=0.05)
    (step,) = (replace(s, untrained=None) for s in steps_of(section, {}, seeds=(0,)))
    told: Told = []
    metrics = made(section, listener(told)).step(step).result()
    ((_, _, rows),) = told
    clip = [c for row in rows for c, t in zip(row.clip, row.trained, strict=True) if t]
    assert {-1, 0, 1} == set(clip)
    assert clip.count(-1) / len(clip) == pytest.approx(metrics["clip_ratio/low_mean"])
    assert clip.count(1) / len(clip) == pytest.approx(metrics["clip_ratio/high_mean"])


def test_a_loss_that_sums_by_itself_shows_no_share() -> None:
    """`test_world_model` is REINFORCE, told by token, and one sum over what was observed."""
    section = algorithm(policy_loss="test_world_model")
    assert world_model is not None
    (step,) = (replace(s, untrained=None) for s in steps_of(section, {}, seeds=(0,)))
    told: Told = []
    metrics = made(section, listener(told)).step(step).result()
    ((_, _, rows),) = told
    observed = metrics["mine/seen"] * 0.1
    assert shares(rows) == pytest.approx(metrics["train/loss"] - observed, rel=1e-4)


def test_masked_tokens_stand_among_the_trained_ones() -> None:
    groups = [
        TrajectoryGroup(
            group_id=group.group_id,
            task_id=group.task_id,
            trajectories=tuple(
                replaced(
                    row,
                    policy_versions=tuple(
                        -1 if not m else 1 + place % 2 for place, m in enumerate(row.response_mask)
                    ),
                )
                for row in group.trajectories
            ),
        )
        for group in make_groups()
    ]
    told: Told = []
    needs = LossNeeds()
    step = make_step(groups, oldest_version=2, needs=needs)
    made(algorithm(), listener(told)).step(step)
    ((_, _, rows),) = told
    assert any(not all(row.trained[: len(row.trained) - 1]) for row in rows)


def test_whoever_is_told_may_raise(caplog: pytest.LogCaptureFixture) -> None:
    def full(step: int, rank: int, rows: Sequence[TrainedTokens]) -> None:
        raise OSError(28, "No space left on device")

    noting, plain = made(algorithm(), full), made(algorithm())
    with caplog.at_level(logging.WARNING, "agentrl.train.token_record"):
        for step in steps_of(algorithm(), {}):
            assert noting.step(step).result()["record/failures"] == 1.0
            plain.step(step)
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    for (name, ours), (_, theirs) in zip(noting.weights(), plain.weights(), strict=True):
        assert torch.equal(ours, theirs), name


def test_numbers_that_cannot_be_read_cost_one_step_of_the_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Tensors without values stand for a device that has no memory left for the copy."""
    (step,) = steps_of(algorithm(), {}, seeds=(0,))
    told: Told = []
    recorder = TokenRecorder(listener(told))
    recorder.begin(step)
    for broken in (True, False):
        micro = step.updates[0].micro_batches[0]
        numbers_R = torch.zeros(len(micro.row_R), device="meta" if broken else "cpu")
        numbers = TokenNumbers(
            mask_R=numbers_R.bool(),
            **dict.fromkeys(
                ("old_R", "log_probs_R", "entropy_R", "advantages_R", "clip_R", "loss_R"), numbers_R
            ),
            correction_R=None,
            ref_R=None,
        )
        metrics = MetricBag()
        recorder.begin(step)
        recorder.note(micro, numbers)
        recorder.note(micro, numbers)
        recorder.finish(3, 0, metrics)
        assert metrics.result() == {"record/failures": float(broken)}
    assert len(caplog.records) == 1
    assert [(number, rank) for number, rank, _ in told] == [(3, 0)]


def train_ranks(address, rank, world_size, steps, section, train):
    ranks = joined(address, rank, world_size)
    told: Told = []
    model = tiny_model(torch.float64)
    backend = make_backend(model, train=train, gradient_checkpointing=False, ranks=ranks)
    trainer = Trainer(model, train=train, algorithm=section, backend=backend, record=listener(told))
    try:
        metrics = [trainer.step(step).result() for step in steps]
    finally:
        ranks.close()
    return told, metrics


@pytest.mark.parametrize("backend", ["torch", "fsdp2"])
def test_ranks_tell_every_row_once_between_them(crew, backend: str) -> None:
    """In two epochs a row may be computed by one rank first and by another last."""
    section = algorithm(old_log_probs="recompute")
    cut = {"epochs": 2, "minibatches": 2, "micro_batch_tokens": 32}
    steps = steps_of(section, cut)
    alone: Told = []
    trainer = made(section, listener(alone), dtype=torch.float64)
    for step in steps:
        trainer.step(step)
    train = TrainSection(learning_rate=1e-2, backend=backend)
    ranks = crew.run(2, train_ranks, steps, section, train)
    for index, (step, _, wanted) in enumerate(alone):
        parts = [told[index] for told, _ in ranks]
        assert [(number, rank) for number, rank, _ in parts] == [(step, 0), (step, 1)]
        assert all(rows for _, _, rows in parts)
        found = [row for _, _, rows in parts for row in rows]
        assert len(found) == len(wanted)
        by_key = {(row.rollout_id, row.row_index): row for row in found}
        for row in wanted:
            same = by_key[row.rollout_id, row.row_index]
            assert same.updates == row.updates
            assert list(same.log_probs) == pytest.approx(list(row.log_probs), abs=1e-5)
            assert list(same.loss) == pytest.approx(list(row.loss), abs=1e-6)
    assert ranks[0][1][0]["record/failures"] == 0.0
