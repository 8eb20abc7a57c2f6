"""One micro-batch of given numbers through the whole objective, for tests that work losses out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.batch.records import MaskCounts
from agentrl.batch.tensors import TensorBatch
from agentrl.config.schema import AlgorithmSection
from agentrl.train.model.logprobs import TokenLogProbs
from agentrl.train.objective import FixedLogProbs, objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    loss: float
    slopes: list[float]
    metrics: dict[str, float]


def doubles(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def section(loss: str = "ppo_clip", **changes: Any) -> AlgorithmSection:
    """Ratios are taken to the policy before the step; clip bounds 0.2 and 0.28."""
    settings = {
        "policy_loss": loss,
        "old_log_probs": "recompute",
        "eps_clip_low": 0.2,
        "eps_clip_high": 0.28,
    }
    return AlgorithmSection(**{**settings, **changes}).resolved(horizon=8)


def evaluate(
    algorithm: AlgorithmSection,
    *,
    now: Sequence[float],
    old: Sequence[float] | None = None,
    rollout: Sequence[float] | None = None,
    ref: Sequence[float] | None = None,
    advantages: Sequence[float],
    weights: Sequence[float] | None = None,
    mask: Sequence[bool] | None = None,
    sampled: Sequence[bool] | None = None,
    sequences: Sequence[int] | None = None,
    entropy: Sequence[float] | None = None,
    counts: Mapping[str, MaskCounts] | None = None,
    kl_coef: float | None = None,
    loss_factor: float = 1.0,
    compare_sampler: bool = True,
) -> Outcome:
    """Loss, its slope by each log-probability, and metrics.

    Without `old` the policy at hand is the old one; without `rollout` the sampler is the old one.
    """
    size = len(now)
    log_probs = doubles(now).requires_grad_()
    known = [True] * size if mask is None else list(mask)
    order = list(sequences or [0] * size)
    nothing = torch.zeros(0, dtype=torch.int64)
    result = objective(
        TokenLogProbs(log_probs_R=log_probs, entropy_R=doubles(entropy or [1.0] * size)),
        TensorBatch(
            lengths=(),
            parents=(),
            input_ids_T=nothing,
            position_ids_T=nothing,
            source_A=nothing,
            target_A=nothing,
            index_A=nothing,
            temperature_A=None,
            mask_R=torch.tensor(known, dtype=torch.bool),
            sampled_R=torch.tensor(known if sampled is None else list(sampled), dtype=torch.bool),
            sequence_R=torch.tensor(order, dtype=torch.int64),
            num_sequences=max(order, default=-1) + 1,
            rollout_log_probs_R=doubles(rollout or old or now),
            advantages_R=doubles(advantages),
            weights_R=doubles(weights or [1.0] * size),
        ),
        FixedLogProbs(
            old_R=None if old is None else doubles(old),
            ref_R=None if ref is None else doubles(ref),
        ),
        algorithm=algorithm,
        counts=counts or {},
        kl_coef=algorithm.kl_coef if kl_coef is None else kl_coef,
        compare_sampler=compare_sampler,
        loss_factor=loss_factor,
    )
    result.loss.backward()
    assert log_probs.grad is not None
    return Outcome(
        loss=result.loss.item(),
        slopes=log_probs.grad.tolist(),
        metrics=result.metrics.result(),
    )
