"""Steps, teachers and dense references that tests of distillation share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentrl.batch.records import StepBatch
from agentrl.config.schema import AlgorithmSection, TrainSection
from agentrl.train.distill.records import Teacher
from agentrl.train.distill.teacher_model import TRAINED, TeacherModel
from agentrl.train.frozen_policy import FrozenPolicy
from agentrl.train.losses import needs_of
from agentrl.train.trainer import Trainer
from agentrl.types import Trajectory, TrajectoryGroup
from tests.train.tiny_llama import VOCABULARY, KeepGradient, algorithm, make_step, replaced


def section_of(*, top_k: int, **changes: Any) -> AlgorithmSection:
    """Pure distillation, unless `with_reward` is set."""
    keys = {key: changes.pop(key) for key in ("coef", "with_reward") if key in changes}
    distill = {"teacher": {"path": "somewhere"}, "top_k": top_k, **keys}
    return algorithm(distill=distill, **changes)


def teacher_of(model: Any, *, top_k: int) -> TeacherModel:
    frozen = FrozenPolicy(model, mask_keys=TRAINED)
    return TeacherModel(frozen, top_k=top_k, vocabulary=VOCABULARY)


def step_of(
    groups: Sequence[TrajectoryGroup], section: AlgorithmSection, **changes: Any
) -> StepBatch:
    return make_step(groups, algorithm=section, needs=needs_of(section), **changes)


def distilled_gradient(
    model: Any, batch: StepBatch, section: AlgorithmSection, teacher: Teacher
) -> dict[str, Tensor]:
    """The gradient of the only update of a step."""
    backend = KeepGradient(model)
    Trainer(model, train=TrainSection(), algorithm=section, backend=backend, teacher=teacher).step(
        batch
    )
    (gradient,) = backend.kept
    return gradient


def at_temperature(groups: Sequence[TrajectoryGroup], temperature: float) -> list[TrajectoryGroup]:
    return [
        TrajectoryGroup(
            group_id=group.group_id,
            task_id=group.task_id,
            trajectories=tuple(replaced(r, temperature=temperature) for r in group.trajectories),
        )
        for group in groups
    ]


def dense_log_probs(model: Any, row: Trajectory) -> Tensor:
    """[R, V] by the library's own forward pass, at the temperature of the row."""
    logits = model(torch.tensor([row.prompt_ids + row.response_ids])).logits[0]
    return torch.log_softmax(logits[len(row.prompt_ids) - 1 : -1] / row.temperature, -1)


def dense_gradient(
    model: Any, teacher: Any, groups: Sequence[TrajectoryGroup], section: AlgorithmSection
) -> dict[str, Tensor]:
    """Reference: one row at a time, the formulas written out anew with autograd."""
    distill = section.distill
    assert distill is not None
    rows = [row for group in groups for row in group.trajectories if row.rule.in_loss]
    tokens, count = sum(row.num_action_tokens for row in rows), len(rows)
    model.zero_grad()
    for row in rows:
        own = row.num_action_tokens
        divisor = {
            "token-mean": tokens,
            "seq-mean-token-mean": count * own,
            "seq-mean-token-sum": count,
            "seq-mean-token-sum-norm": count * (section.horizon or 0),
        }[section.loss_agg_mode or ""]
        ours = dense_log_probs(model, row)
        with torch.no_grad():
            theirs = dense_log_probs(teacher, row)
        for place, token in enumerate(row.response_ids):
            if not row.response_mask[place]:
                continue
            if distill.top_k == 0:
                apart = float((ours[place, token] - theirs[place, token]).detach())
                loss = apart * ours[place, token]
            else:
                loss = _merged_kl(ours[place], theirs[place], distill.top_k)
            (distill.coef * loss / divisor).backward(retain_graph=True)
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def _merged_kl(ours_V: Tensor, theirs_V: Tensor, top_k: int) -> Tensor:
    ids = theirs_V.topk(top_k).indices
    rest = torch.ones_like(ours_V, dtype=torch.bool)
    rest[ids] = False
    parts = [
        torch.cat([log_probs.exp()[ids], log_probs.exp()[rest].sum()[None]])
        for log_probs in (ours_V, theirs_V)
    ]
    return (parts[0] * (parts[0].log() - parts[1].log())).sum()


def exact_kl(model: Any, teacher: Any, rows: Sequence[Trajectory]) -> float:
    """Mean KL(model | teacher) over sampled positions and the whole vocabulary, in nats."""
    total, count = 0.0, 0
    with torch.no_grad():
        for row in rows:
            ours, theirs = dense_log_probs(model, row), dense_log_probs(teacher, row)
            kl_R = (ours.exp() * (ours - theirs)).sum(-1)
            mask = torch.tensor(row.response_mask, dtype=torch.bool)
            total, count = total + float(kl_R[mask].sum()), count + int(mask.sum())
    return total / count


__all__ = [
    "at_temperature", "dense_gradient", "dense_log_probs", "distilled_gradient", "exact_kl",
    "section_of", "step_of", "teacher_of",
]  # fmt: skip
