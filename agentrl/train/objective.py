"""What a micro-batch adds to the loss: policy term, correction and penalty, put together once.

old_log_probs   ratio taken to                    policy term times
rollout         the sampler                       1
recompute       the policy before the step        1
decoupled       the policy before the step        w, from the sampler to that policy
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from agentrl.batch.records import MicroBatch
from agentrl.batch.tensors import TensorBatch
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.train.logprob_worker import RowLogProbs, in_batch_order
from agentrl.train.logprobs import TokenLogProbs
from agentrl.train.losses import (
    LossSums,
    entropy_metrics,
    kl_loss,
    policy_loss,
    sampler_importance,
    sampler_metrics,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLogProbs:
    """What other policies think of the tokens of a micro-batch; no gradient flows to them."""

    old_R: Tensor | None = None
    """[R] The policy before the first update of the step; None while it is the policy at hand."""
    ref_R: Tensor | None = None
    """[R] The reference policy; needed with a KL penalty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLogProbs:
    """What other policies think of the rows of a step."""

    old: RowLogProbs | None
    """Before the first update; None while the policy at hand is that policy."""
    ref: RowLogProbs | None
    """The reference; None without a KL penalty."""

    def of(self, micro: MicroBatch, *, like: Tensor) -> FixedLogProbs:
        """The same for the tokens of one micro-batch."""
        old, ref = self.old, self.ref
        return FixedLogProbs(
            old_R=None if old is None else in_batch_order(old, micro, like=like, policy="policy"),
            ref_R=None
            if ref is None
            else in_batch_order(ref, micro, like=like, policy="reference policy"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss of one micro-batch."""

    loss: Tensor
    """Scalar with gradient: policy term plus penalty."""
    penalty: float
    """The share of the KL penalty in it."""
    metrics: MetricBag
    """Sums and counts over the trained tokens."""


def objective(
    out: TokenLogProbs,
    tensors: TensorBatch,
    fixed: FixedLogProbs,
    *,
    algorithm: AlgorithmSection,
    compare_sampler: bool,
) -> Objective:
    """Loss and metrics of one micro-batch.

    Args:
        out: of the policy at hand, with gradient.
        tensors: the micro-batch.
        fixed: of the other policies.
        algorithm: which parts there are.
        compare_sampler: measure how far the old policy is from the sampler. Once per row is enough.

    Raises:
        TrainError: a KL penalty without a reference.
    """
    assert algorithm.eps_clip_low is not None
    assert algorithm.eps_clip_high is not None
    current = out.log_probs_R.detach()
    old = current if fixed.old_R is None else fixed.old_R
    rollout, mask = tensors.rollout_log_probs_R, tensors.mask_R
    decoupled = algorithm.old_log_probs == "decoupled"
    sums = policy_loss(
        out.log_probs_R,
        old_log_probs_R=rollout if algorithm.old_log_probs == "rollout" else old,
        advantages_R=tensors.advantages_R,
        weights_R=tensors.weights_R,
        mask_R=mask,
        eps_clip_low=algorithm.eps_clip_low,
        eps_clip_high=algorithm.eps_clip_high,
        importance_R=sampler_importance(old, rollout, mask) if decoupled else None,
    )
    loss, penalty, metrics = sums.loss, 0.0, sums.metrics
    metrics.merge(entropy_metrics(out.entropy_R, mask))
    if compare_sampler:
        metrics.merge(sampler_metrics(old, rollout, mask))
    if algorithm.kl_coef > 0.0:
        kl = _penalty(out, tensors, fixed, algorithm)
        loss, penalty = loss + kl.loss, float(kl.loss.detach())
        metrics.merge(kl.metrics)
    return Objective(loss=loss, penalty=penalty, metrics=metrics)


def _penalty(
    out: TokenLogProbs, tensors: TensorBatch, fixed: FixedLogProbs, algorithm: AlgorithmSection
) -> LossSums:
    if fixed.ref_R is None:
        raise TrainError(
            f"algorithm.kl_coef is {algorithm.kl_coef}, but there are no log-probabilities of "
            "a reference policy"
        )
    assert algorithm.kl_estimator in ("k2", "k3")
    return kl_loss(
        out.log_probs_R,
        ref_log_probs_R=fixed.ref_R,
        weights_R=tensors.weights_R,
        mask_R=tensors.mask_R,
        kl_coef=algorithm.kl_coef,
        estimator=algorithm.kl_estimator,
    )
