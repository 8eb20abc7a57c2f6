"""What stands at masked positions reaches nothing (DESIGN section 6, proof 2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_llama import (
    KeepGradient,
    algorithm,
    make_groups,
    make_step,
    reference,
    replaced,
    tiny_model,
)

from agentrl.batch.records import StepBatch
from agentrl.config.schema import TrainSection
from agentrl.train.losses import kl_loss, policy_loss, sampler_importance
from agentrl.train.trainer import Trainer
from agentrl.types import TrajectoryGroup

FLOATS = ("rollout_log_probs_R", "advantages_R", "weights_R")


class Poisoned:
    """A reference whose numbers are `value` wherever nothing is trained."""

    def __init__(self, value):
        self.value = value

    def row_log_probs(self, micro_batches):
        known = dict(reference(dtype=torch.float32).row_log_probs(micro_batches))
        for micro in micro_batches:
            for index, key in enumerate(micro.rows):
                mask = micro.mask_R[micro.row_R == index]
                known[key] = np.where(mask, known[key], np.float32(self.value))
        return known


def outcome(model, step, section, *, beside=0.0):
    backend = KeepGradient(model)
    trainer = Trainer(
        model,
        train=TrainSection(),
        algorithm=section,
        backend=backend,
        reference=Poisoned(beside),
    )
    metrics = trainer.step(step).result()
    metrics.pop("train/tokens_per_second")
    return metrics, backend.kept


def poisoned(step: StepBatch, value: float, seed: int) -> StepBatch:
    rng = np.random.default_rng(seed)
    updates = []
    for update in step.updates:
        micros = []
        for micro in update.micro_batches:
            off = ~micro.mask_R
            assert off.any()
            changes = {n: np.where(off, value, getattr(micro, n)) for n in FLOATS}
            ids = rng.integers(0, 61, len(off))
            changes["target_R"] = np.where(off, ids, micro.target_R)
            micros.append(replace(micro, **changes))
        updates.append(replace(update, micro_batches=tuple(micros)))
    return replace(step, updates=tuple(updates))


@pytest.mark.parametrize("kl", [None, "k2", "k3"])
@pytest.mark.parametrize("base", ["rollout", "recompute", "decoupled"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e4, -1e4])
def test_poison_at_masked_positions_changes_no_bit(value, base, kl):
    # Fails if a loss multiplies by the mask instead of choosing with where (NaN), and if the
    # sampler metrics take a maximum before masking.
    model = tiny_model(torch.float32)
    penalty = {"kl_coef": 0.3, "kl_estimator": kl} if kl else {}
    section = algorithm(old_log_probs=base, **penalty)
    step = make_step(make_groups(), algorithm=section)
    clean_metrics, clean = outcome(model, step, section)
    dirty_metrics, dirty = outcome(model, poisoned(step, value, 1), section, beside=value)
    assert ("kl" in clean_metrics) == (kl is not None)
    assert dirty_metrics == clean_metrics
    for ours, theirs in zip(dirty, clean, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_poison_in_the_trajectory_after_the_last_sampled_token_changes_no_bit():
    # Environment text that follows the last action conditions nothing that is trained.
    model, section = tiny_model(torch.float32), algorithm()
    groups = make_groups()

    def extended(token: int, log_prob: float):
        tail = 3
        return [
            TrajectoryGroup(
                group_id=g.group_id,
                task_id=g.task_id,
                trajectories=tuple(
                    replaced(
                        row,
                        response_ids=row.response_ids + (token,) * tail,
                        response_mask=row.response_mask + (0,) * tail,
                        rollout_log_probs=row.rollout_log_probs + (log_prob,) * tail,
                        policy_versions=row.policy_versions + (-1,) * tail,
                    )
                    for row in g.trajectories
                ),
            )
            for g in groups
        ]

    _, clean = outcome(model, make_step(extended(3, 0.0)), section)
    _, dirty = outcome(model, make_step(extended(7, float("nan"))), section)
    assert all(torch.equal(dirty[0][name], clean[0][name]) for name in clean[0])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e4])
def test_the_loss_itself_ignores_masked_log_probs(value):
    # The trainer leaves 0 there; a loss of its own must not rely on that.
    mask = torch.tensor([True, False, True])
    others = {
        "old_log_probs_R": torch.tensor([-1.0, value, -2.0]),
        "advantages_R": torch.tensor([1.0, value, -1.0]),
        "weights_R": torch.tensor([0.5, value, 0.5]),
        "mask_R": mask,
        "eps_clip_low": 0.2,
        "eps_clip_high": 0.2,
    }
    log_probs = torch.tensor([-1.1, value, -2.1], requires_grad=True)
    result = policy_loss(log_probs, **others)
    result.loss.backward()
    assert torch.isfinite(result.loss)
    assert log_probs.grad is not None
    assert log_probs.grad[1] == 0.0
    assert torch.isfinite(log_probs.grad).all()


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e4])
def test_the_penalty_and_the_importance_ignore_masked_positions_themselves(value, estimator):
    mask = torch.tensor([True, False, True])
    log_probs = torch.tensor([-1.1, value, -2.1], requires_grad=True)
    result = kl_loss(
        log_probs,
        ref_log_probs_R=torch.tensor([-1.0, value, -2.0]),
        weights_R=torch.tensor([0.5, value, 0.5]),
        mask_R=mask,
        kl_coef=0.5,
        estimator=estimator,
    )
    importance = sampler_importance(
        torch.tensor([-1.0, value, -2.0]), torch.tensor([-1.5, -value, -2.5]), mask
    )
    loss = (
        result.loss
        + policy_loss(
            log_probs,
            old_log_probs_R=torch.tensor([-1.0, value, -2.0]),
            advantages_R=torch.tensor([1.0, value, -1.0]),
            weights_R=torch.tensor([0.5, value, 0.5]),
            mask_R=mask,
            eps_clip_low=0.2,
            eps_clip_high=0.2,
            importance_R=importance + torch.tensor([0.0, value, 0.0]),
        ).loss
    )
    loss.backward()
    assert torch.isfinite(loss)
    assert log_probs.grad is not None
    assert log_probs.grad[1] == 0.0
    assert torch.isfinite(log_probs.grad).all()
    assert torch.isfinite(importance).all()
    assert all(np.isfinite(value) for value in result.metrics.result().values())
