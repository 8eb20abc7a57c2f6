"""What stands at masked positions reaches nothing (DESIGN section 6, proof 2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from agentrl.batch.records import MaskCounts, StepBatch
from agentrl.config.schema import AlgorithmSection, TrainSection
from agentrl.metrics.names import is_of_machine
from agentrl.train.losses import LossInputs, TokenLosses, needs_of, policy_loss
from agentrl.train.trainer import Trainer
from agentrl.types import TrajectoryGroup
from tests.train.losses.loss_parts import evaluate
from tests.train.tiny_llama import (
    KeepGradient,
    algorithm,
    make_groups,
    make_step,
    reference,
    replaced,
    tiny_model,
)

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
    return {k: v for k, v in metrics.items() if not is_of_machine(k)}, backend.kept


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


BUILT_IN = ("ppo_clip", "gspo", "cispo", "tis_reinforce", "sapo")
CORRECTIONS = ("tis", "icepop", "seq-mask-tis")


@policy_loss("test_poison_custom", masks=("response_mask",), whole_rollouts=True)
def custom(inputs: LossInputs) -> TokenLosses:
    """Uses everything there is, masks nothing."""
    ratio = (inputs.log_probs_R - inputs.old_log_probs_R).exp()
    apart = (inputs.log_probs_R - inputs.rollout_log_probs_R).square()
    mean = inputs.sequence_mean(inputs.entropy_R)
    return TokenLosses(
        loss_R=-ratio * inputs.advantages_R + 0.1 * apart * mean,
        total=inputs.aggregate(apart, mask="response_mask", mode="seq-mean-token-mean"),
        metrics={"mine/ratio": ratio, "mine/apart@max": apart, "mine/low@min": apart},
    )


ASSEMBLIES = {
    **{f"{base}-{kl}": {"old_log_probs": base, **penalty}
       for base in ("rollout", "recompute", "decoupled")
       for kl, penalty in (
           ("free", {}),
           *((kl, {"kl_coef": 0.3, "kl_estimator": kl}) for kl in ("k1", "k2", "k3", "k3+")),
       )},
    **{loss: {"policy_loss": loss} for loss in (*BUILT_IN, "test_poison_custom")},
    **{kind: {"old_log_probs": "recompute", "is_correction_type": kind} for kind in CORRECTIONS},
    "dual": {"dual_clip": 3.0},
    "entropy": {"entropy_coef": 0.3},
    "gspo-entropy": {"policy_loss": "gspo", "entropy_coef": 0.3},
    "sequence": {"policy_loss": "tis_reinforce", "importance_level": "sequence"},
}  # fmt: skip


@pytest.mark.parametrize("changes", ASSEMBLIES.values(), ids=ASSEMBLIES.keys())
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e4])
def test_poison_at_masked_positions_changes_no_bit(value, changes):
    # Fails if a loss multiplies by the mask instead of choosing with where (NaN), and if the
    # sampler metrics take a maximum before masking.
    model = tiny_model(torch.float32)
    section = algorithm(**changes)
    step = make_step(make_groups(), algorithm=section, needs=needs_of(section))
    clean_metrics, clean = outcome(model, step, section)
    dirty_metrics, dirty = outcome(model, poisoned(step, value, 1), section, beside=value)
    assert ("kl" in clean_metrics) == ("kl_coef" in changes)
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


@pytest.mark.parametrize("loss", [*BUILT_IN, "test_poison_custom"])
@pytest.mark.parametrize("kind", ["none", *CORRECTIONS])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3+"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e4])
def test_no_input_of_the_objective_is_read_where_it_is_masked(value, estimator, kind, loss):
    """The trainer leaves 0 in some of these places; the objective must not rely on that.

    Fails if a difference, an exp or a product comes before the mask anywhere.
    """
    mask = [True, False, True, False]
    clean = {
        "now": [-1.1, 0.0, -2.1, 0.0],
        "old": [-1.0, 0.0, -2.0, 0.0],
        "rollout": [-1.5, 0.0, -2.5, 0.0],
        "ref": [-1.2, 0.0, -1.8, 0.0],
        "advantages": [1.0, 0.0, -1.0, 0.0],
        "weights": [0.5, 0.5, 0.25, 0.25],
        "entropy": [1.0, 0.0, 2.0, 0.0],
    }
    dirty = {
        name: [have if kept else value for have, kept in zip(values, mask, strict=True)]
        for name, values in clean.items()
    }
    section = AlgorithmSection(
        policy_loss=loss,
        old_log_probs="recompute",
        is_correction_type=kind,
        dual_clip=3.0,
        kl_coef=0.5,
        kl_estimator=estimator,
    ).resolved(horizon=8)
    counts = {"response_mask": MaskCounts(batch_num_tokens=4, global_valid_samples=2)}
    shape = {"mask": mask, "sequences": [0, 0, 1, 1], "counts": counts}
    assert evaluate(section, **dirty, **shape) == evaluate(section, **clean, **shape)


@pytest.mark.parametrize("loss", BUILT_IN)
@pytest.mark.parametrize("value", [float("nan"), 1e4])
def test_stale_tokens_reach_nothing_although_they_are_sampled(value, loss):
    """Token 1 is under `response_mask` and not trained: its weights were too old."""
    tokens = {
        "advantages": [1.0, value],
        "weights": [0.5, value],
        "mask": [True, False],
        "sampled": [True, True],
    }
    section = AlgorithmSection(policy_loss=loss, old_log_probs="recompute").resolved(horizon=8)
    got = evaluate(section, now=[-1.0, value], old=[-1.1, value], rollout=[-1.2, value], **tokens)
    assert got.slopes[1] == 0.0
    alone = {name: values[:1] for name, values in tokens.items()}
    want = evaluate(section, now=[-1.0], old=[-1.1], rollout=[-1.2], **alone)
    assert (got.loss, got.slopes[:1], got.metrics) == (want.loss, want.slopes, want.metrics)
