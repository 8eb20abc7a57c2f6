"""Gradient, loss, metrics and the slope of every token of one update, as the trainer forms them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from agentrl.batch import StepSettings, build_step
from agentrl.batch.credit import compute_credit
from agentrl.batch.packing import padding_micro_batch
from agentrl.batch.records import (
    BoolArray,
    FloatArray,
    LossNeeds,
    MicroBatch,
    PackedBatch,
    RowKey,
    RowNumbers,
)
from agentrl.batch.tensors import TensorBatch, to_tensors
from agentrl.config.presets import Bounds
from agentrl.config.schema import AlgorithmSection
from agentrl.metrics.bag import MetricBag
from agentrl.train.losses import derive_metrics
from agentrl.train.objective import FixedLogProbs, Objective, objective, with_wishes
from agentrl.train.prove.policies import FixedName, Policies
from agentrl.train.prove.precision import NarrowestDtype
from agentrl.train.prove.rollouts import OLDEST_VERSION
from agentrl.train.prove.tokens import TokenKey, TokenSlopes, tokens_of
from agentrl.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """One way to divide the work."""

    name: str
    """For the report."""
    micro_batch_tokens: int = 1 << 20
    """Budget of a forward pass."""
    ranks: int = 1
    """Ranks that share the micro-batches; their gradients are averaged, as most backends do."""
    prefix_sharing: bool = False
    """Whether rows share what they begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOutcome:
    """Everything the optimizer would see, and what explains it."""

    gradient: Mapping[str, Tensor]
    """Gradient by parameter."""
    slopes: Mapping[TokenKey, float]
    """Slope of the loss by the log-probability of each token the loss looks at."""
    loss: float
    """Loss of the update."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Merged over micro-batches and ranks."""
    micro_batches: int = 0
    """Number of micro-batches."""
    dtype: torch.dtype = torch.float64
    """The narrowest that the loss computed in; float64 where that was not asked for."""


def build_update(
    groups: list[TrajectoryGroup],
    division: Division,
    *,
    policies: Policies,
    algorithm: AlgorithmSection,
    needs: LossNeeds,
    clip_shaped: Bounds | None,
) -> PackedBatch:
    """The only update of a step, with its advantages."""
    step = build_step(
        groups,
        StepSettings(
            algorithm=algorithm,
            micro_batch_tokens=division.micro_batch_tokens,
            seed=0,
            oldest_version=OLDEST_VERSION,
            needs=needs,
            prefix_sharing=division.prefix_sharing,
            clip_shaped=clip_shaped,
        ),
    )
    if step.credit is not None:
        micros = step.updates[0].micro_batches
        step = compute_credit(
            step,
            old=_numbers(policies, "old", micros),
            ref=_numbers(policies, "ref", micros),
            values=_values(micros),
            kl_coef=algorithm.kl_coef,
            algorithm=algorithm,
        )
    (update,) = step.updates
    return update


def evaluate(
    update: PackedBatch,
    *,
    policies: Policies,
    algorithm: AlgorithmSection,
    needs: LossNeeds,
    ranks: int = 1,
    on_policy: bool = False,
    poison: Mapping[str, float] | None = None,
    dtypes: bool = True,
) -> UpdateOutcome:
    """Forward and backward of an update.

    Args:
        update: its micro-batches.
        policies: who is asked.
        algorithm: resolved.
        needs: of the loss.
        ranks: see `Division`. Ranks with less to do compute padding.
        on_policy: sampler and old policy are the policy at hand.
        poison: `old`, `ref` and `teacher` numbers where no loss looks.
        dtypes: look at what the loss computes in. Outcomes that are compared bit by bit need no
            tolerance.
    """
    parameters = dict(policies.parameters())
    sums = _UpdateSums(
        gradient={name: torch.zeros_like(param) for name, param in parameters.items()}
    )
    micros = list(update.micro_batches)
    micros += [padding_micro_batch()] * (-len(micros) % ranks)
    narrowest = NarrowestDtype()
    with policies.packed():
        for micro in micros:
            for param in parameters.values():
                param.grad = None
            tensors = _tensors(micro, needs)
            fixed = FixedLogProbs()
            if not on_policy:
                fixed = _fixed(policies, tensors, micro, needs, poison or {})
                if not algorithm.needs_reference:
                    # Training loads none then, and a loss that asks for it has to break here.
                    fixed = replace(fixed, ref_R=None)
                if algorithm.distill is None:
                    fixed = replace(fixed, teacher=None)
            out = policies.now(with_wishes(tensors, fixed, algorithm), micro)
            out.log_probs_R.retain_grad()
            if on_policy:
                tensors = replace(tensors, rollout_log_probs_R=out.log_probs_R.detach())
                fixed = FixedLogProbs(ref_R=out.log_probs_R.detach())
            with narrowest if dtypes else nullcontext():
                found = objective(
                    out,
                    tensors,
                    fixed,
                    algorithm=algorithm,
                    counts=update.counts,
                    kl_coef=algorithm.kl_coef,
                    compare_sampler=not on_policy,
                    loss_factor=float(ranks),
                )
            # A rank's gradient is that of its loss times the factor; the backend averages.
            (found.loss * ranks).backward()
            sums.add(parameters, found, out.log_probs_R.grad, micro, tensors, ranks)
    for param in parameters.values():
        param.grad = None
    derive_metrics(sums.metrics)
    return UpdateOutcome(
        gradient=sums.gradient,
        slopes=sums.slopes,
        loss=sums.loss,
        metrics=sums.metrics.result(),
        micro_batches=len(update.micro_batches),
        dtype=narrowest.dtype,
    )


@dataclass(slots=True, kw_only=True)
class _UpdateSums:
    """An update in the making."""

    gradient: dict[str, Tensor]
    slopes: TokenSlopes = field(default_factory=TokenSlopes)
    loss: float = 0.0
    metrics: MetricBag = field(default_factory=MetricBag)

    def add(
        self,
        parameters: Mapping[str, Tensor],
        found: Objective,
        slope_R: Tensor | None,
        micro: MicroBatch,
        tensors: TensorBatch,
        ranks: int,
    ) -> None:
        """One micro-batch, after its backward pass."""
        for name, param in parameters.items():
            if param.grad is not None:
                self.gradient[name] += param.grad / ranks
        self.loss += float(found.loss.detach())
        self.metrics.merge(found.metrics)
        if slope_R is not None:
            self.slopes.add(micro, tensors.index_A, slope_R[tensors.index_A] / ranks)


def visible_R(micro: MicroBatch, needs: LossNeeds) -> BoolArray:
    """[R] True where the loss looks."""
    found = micro.mask_R
    for key in needs.mask_keys:
        found = found | covered_R(micro, key)
    return found


def covered_R(micro: MicroBatch, key: str) -> BoolArray:
    """[R] True where a mask of `MASK_KEYS` is."""
    if key == "response_mask":
        return micro.sampled_R
    return micro.mask_R if key == "final_response_mask" else ~micro.sampled_R


def _tensors(micro: MicroBatch, needs: LossNeeds) -> TensorBatch:
    return to_tensors(
        micro, device=torch.device("cpu"), dtype=torch.float64, mask_keys=needs.mask_keys
    )


def _fixed(
    policies: Policies,
    tensors: TensorBatch,
    micro: MicroBatch,
    needs: LossNeeds,
    poison: Mapping[str, float],
) -> FixedLogProbs:
    visible = torch.as_tensor(visible_R(micro, needs))

    def of(name: FixedName) -> Tensor:
        known = policies.fixed(name, tensors, micro)
        return torch.where(visible, known, known.new_full((), poison.get(name, 0.0)))

    taught = policies.teacher(tensors, micro)
    trained, value = torch.as_tensor(micro.mask_R), poison.get("teacher", 0.0)
    sampled_R, log_probs_RK = taught.sampled_R, taught.log_probs_RK
    taught = replace(
        taught,
        sampled_R=torch.where(trained, sampled_R, sampled_R.new_full((), value)),
        log_probs_RK=torch.where(trained[:, None], log_probs_RK, sampled_R.new_full((), value)),
    )
    return FixedLogProbs(old_R=of("old"), ref_R=of("ref"), teacher=taught)


def _numbers(policies: Policies, name: FixedName, micros: Iterable[MicroBatch]) -> RowNumbers:
    found: dict[RowKey, FloatArray] = {}
    for micro in micros:
        numbers = policies.fixed(name, _tensors(micro, LossNeeds()), micro).numpy()
        for index, key in enumerate(micro.rows):
            found[key] = numbers[micro.row_R == index]
    return found


def _values(micros: Iterable[MicroBatch]) -> RowNumbers:
    """Values drawn from the identity of each token alone, so that they fit any division."""
    found: dict[RowKey, FloatArray] = {}
    for micro in micros:
        keys = tokens_of(micro)
        for index, key in enumerate(micro.rows):
            own = np.flatnonzero(micro.row_R == index)
            found[key] = np.array(
                [random.Random(str(keys[position])).uniform(-1.0, 1.0) for position in own]
            )
    return found
