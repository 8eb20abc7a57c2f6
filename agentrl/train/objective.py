"""The loss of a micro-batch: the sum of policy term, correction, penalty and a teacher's part.

old_log_probs   ratio taken to                    policy term times
rollout         the sampler                       1
recompute       the policy before the step        1
decoupled       the policy before the step        w, from the sampler to that policy
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentrl.batch.records import MaskCounts, MicroBatch
from agentrl.batch.tensors import TensorBatch
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.train.distill.records import RowTeacher, TeacherTokens, tokens_of_teacher
from agentrl.train.distill.terms import distill_terms
from agentrl.train.logprob_worker import RowLogProbs, in_batch_order
from agentrl.train.losses.contract import LossInputs, LossSpec, LossSums, TokenLosses
from agentrl.train.losses.correction import SamplerWeights, correction_of, sampler_weights
from agentrl.train.losses.metrics import (
    TokenMetrics,
    entropy_metrics,
    sampler_metrics,
    used_ratio,
)
from agentrl.train.losses.penalty import entropy_loss, kl_loss
from agentrl.train.losses.registry import find_loss, wants_whole_rollouts
from agentrl.train.model.logprobs import TokenLogProbs
from agentrl.train.token_record import TokenNumbers, clip_state


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLogProbs:
    """Log-probabilities of other policies for a micro-batch; no gradient flows to them."""

    old_R: Tensor | None = None
    """[R] The policy before the first update of the step; None while it is the policy at hand."""
    ref_R: Tensor | None = None
    """[R] The reference policy; needed with a KL penalty."""
    teacher: TeacherTokens | None = None
    """The teacher; needed with `algorithm.distill`."""

    def asking(self, tensors: TensorBatch) -> TensorBatch:
        """The micro-batch with a wish for the policy's numbers at the teacher's tokens."""
        if self.teacher is None or self.teacher.ids_RK.shape[1] == 0:
            return tensors
        return replace(tensors, more_AK=self.teacher.ids_RK[tensors.index_A])


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLogProbs:
    """Log-probabilities of other policies for the rows of a step."""

    old: RowLogProbs | None
    """Before the first update; None while the policy at hand is that policy."""
    ref: RowLogProbs | None
    """The reference; None without a KL penalty."""
    teacher: RowTeacher | None = None
    """The teacher; None without distillation."""
    top_k: int = 0
    """`algorithm.distill.top_k`."""

    def of(self, micro: MicroBatch, *, like: Tensor) -> FixedLogProbs:
        """The same for the tokens of one micro-batch."""
        old, ref = self.old, self.ref
        return FixedLogProbs(
            old_R=None if old is None else in_batch_order(old, micro, like=like, policy="policy"),
            ref_R=None
            if ref is None
            else in_batch_order(ref, micro, like=like, policy="reference policy"),
            teacher=None
            if self.teacher is None
            else tokens_of_teacher(self.teacher, micro, like=like, top_k=self.top_k),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss of one micro-batch."""

    loss: Tensor
    """Scalar with gradient: policy term, penalty and bonus."""
    penalty_loss: Tensor | None
    """Scalar share of the KL penalty in it, without gradient; None without one."""
    bonus_loss: Tensor | None
    """Scalar share of the entropy bonus in it, zero or below; None without one."""
    measured: TokenMetrics
    """Sums and counts over the trained tokens, on the device still."""
    tokens: TokenNumbers | None = None
    """Numbers of each token; None if they were not asked for."""

    # A GPU and Python wait for each other where one of these is read, so that is done last.
    @property
    def penalty(self) -> float:
        """Share of the KL penalty in the loss."""
        return 0.0 if self.penalty_loss is None else float(self.penalty_loss)

    @property
    def bonus(self) -> float:
        """Share of the entropy bonus in the loss, zero or below."""
        return 0.0 if self.bonus_loss is None else float(self.bonus_loss)

    @property
    def metrics(self) -> MetricBag:
        """Sums and counts over the trained tokens."""
        bag = MetricBag()
        self.measured.into(bag)
        return bag


def objective(
    out: TokenLogProbs,
    tensors: TensorBatch,
    fixed: FixedLogProbs,
    *,
    algorithm: AlgorithmSection,
    counts: Mapping[str, MaskCounts],
    kl_coef: float,
    compare_sampler: bool,
    loss_factor: float = 1.0,
    keep_tokens: bool = False,
    measure: bool = True,
) -> Objective:
    """Loss and metrics of one micro-batch.

    Args:
        out: of the policy at hand, with gradient; that of the entropy too, where
            `algorithm.entropy_coef` is set (`with_wishes`).
        tensors: the micro-batch.
        fixed: of the other policies.
        algorithm: resolved; which parts there are.
        counts: of the update (`PackedBatch.counts`), by mask key.
        kl_coef: weight of the penalty now.
        compare_sampler: measure how far the old policy is from the sampler. Once per row is enough.
        loss_factor: what the backend multiplies the loss by before its backward pass; only a loss
            with `apply_loss_scale=False` gets to see it.
        keep_tokens: return what each token came to.
        measure: count metrics; without it there are none.

    Raises:
        TrainError: a KL penalty without a reference, a bonus for an entropy without gradient,
            distillation without a teacher, or a policy loss that breaks its contract.
    """
    spec = find_loss(algorithm.policy_loss)
    old = out.log_probs_R.detach() if fixed.old_R is None else fixed.old_R
    taught = None
    if algorithm.distill is not None:
        taught = distill_terms(algorithm.distill, out, tensors, fixed.teacher)
        tensors = taught.tensors
    inputs = _inputs(out, tensors, fixed, old, spec, algorithm, counts, loss_factor)
    found = _checked(_called(spec, inputs), spec, inputs)
    metrics = TokenMetrics()
    metrics.add(found.metrics, tensors.mask_R)
    weights = sampler_weights(correction_of(algorithm, spec), old, inputs)
    # Connected to the weights although a loss may return a constant: padding has to be.
    loss = inputs.log_probs_R.sum() * 0.0
    shares: list[Tensor] = []
    if found.loss_R is not None:
        token_loss = inputs.trained(found.loss_R)
        if weights is not None:
            token_loss = weights.weight_R * token_loss
        share_R = inputs.trained(tensors.weights_R) * token_loss
        shares.append(share_R.detach())
        loss = loss + share_R.sum()
    if found.total is not None:
        # The backend multiplies by its factor, which such a loss has in it already.
        loss = loss + (found.total if spec.apply_loss_scale else found.total / loss_factor)
    metrics.add(entropy_metrics(out.entropy_R), tensors.mask_R)
    if compare_sampler and measure:
        _add_comparison(metrics, old, tensors, weights)
    penalty = None
    if algorithm.needs_reference and algorithm.use_kl_loss:
        penalty = _penalty(out, tensors, fixed, algorithm, kl_coef)
        shares.append(penalty.share_R)
        loss = loss + penalty.loss
        metrics.add({"kl": penalty.value_R}, tensors.mask_R)
    bonus = None
    if algorithm.entropy_coef:
        bonus = _bonus(out, tensors, algorithm.entropy_coef)
        shares.append(bonus.share_R)
        loss = loss + bonus.loss
    if taught is not None:
        metrics.add(taught.metrics, tensors.mask_R)
        if taught.term is not None:
            shares.append(taught.term.share_R)
            loss = loss + taught.term.loss
    if measure:
        metrics.reduce()
    tokens = None
    if keep_tokens:
        clip_R = clip_state(found.metrics, tensors.mask_R)
        tokens = _token_numbers(out, tensors, fixed, old, weights, clip_R, shares)
    return Objective(
        loss=loss,
        penalty_loss=None if penalty is None else penalty.loss.detach(),
        bonus_loss=None if bonus is None else bonus.loss.detach(),
        measured=metrics if measure else TokenMetrics(),
        tokens=tokens,
    )


def with_wishes(
    tensors: TensorBatch, fixed: FixedLogProbs, algorithm: AlgorithmSection
) -> TensorBatch:
    """The micro-batch with all wishes that the objective has of the policy at hand."""
    asked = fixed.asking(tensors)
    return replace(asked, entropy_gradient=True) if algorithm.entropy_coef else asked


def measured_loss(
    out: TokenLogProbs,
    tensors: TensorBatch,
    *,
    algorithm: AlgorithmSection,
    counts: Mapping[str, MaskCounts],
    passes: float,
) -> MetricBag:
    """Metrics of the policy loss at a micro-batch of `StepBatch.untrained`.

    A mean counts the tokens that these stand for, `weights_R`. Advantages are 0, and there is no
    reference.

    Args:
        out: of the policy before the step, without gradient.
        tensors: the micro-batch.
        algorithm: resolved.
        counts: of the rows that these stand for, by mask key.
        passes: how often the step computes a row that it trains.

    Raises:
        TrainError: the policy loss raised, or breaks its contract.
    """
    spec = find_loss(algorithm.policy_loss)
    fixed = FixedLogProbs()
    inputs = _inputs(out, tensors, fixed, out.log_probs_R, spec, algorithm, counts, 1.0)
    found = _checked(_called(spec, inputs), spec, inputs)
    metrics, bag = TokenMetrics(tensors.weights_R * passes), MetricBag()
    metrics.add(found.metrics, tensors.mask_R)
    metrics.into(bag)
    return bag


def measured_policy(
    out: TokenLogProbs,
    tensors: TensorBatch,
    *,
    algorithm: AlgorithmSection,
    passes: float,
    compared: float,
) -> MetricBag:
    """Entropy of the policy at such a micro-batch, and how far it is from the sampler.

    Args:
        out: of the policy before the step, without gradient.
        tensors: the micro-batch.
        algorithm: resolved.
        passes: how often the step computes a row that it trains.
        compared: share of the rows it trains that are compared with the sampler.
    """
    spec, old, bag = find_loss(algorithm.policy_loss), out.log_probs_R, MetricBag()
    entropy = TokenMetrics(tensors.weights_R * passes)
    entropy.add(entropy_metrics(out.entropy_R), tensors.mask_R)
    entropy.into(bag)
    sampler = TokenMetrics(tensors.weights_R * compared)
    inputs = _inputs(out, tensors, FixedLogProbs(), old, spec, algorithm, {}, 1.0)
    weights = sampler_weights(correction_of(algorithm, spec), old, inputs)
    _add_comparison(sampler, old, tensors, weights)
    sampler.into(bag)
    return bag


def _add_comparison(
    metrics: TokenMetrics, old_R: Tensor, tensors: TensorBatch, weights: SamplerWeights | None
) -> None:
    """Distance of the old policy from the sampler, and the weights that correct for it."""
    metrics.add(sampler_metrics(old_R, tensors.rollout_log_probs_R), tensors.mask_R)
    weight_R = None if weights is None else weights.weight_R
    metrics.add(used_ratio(old_R, tensors.rollout_log_probs_R, weight_R), tensors.mask_R)
    if weights is not None:
        metrics.add(weights.metrics, tensors.mask_R)


def _token_numbers(
    out: TokenLogProbs,
    tensors: TensorBatch,
    fixed: FixedLogProbs,
    old_R: Tensor,
    weights: SamplerWeights | None,
    clip_R: Tensor,
    shares: Sequence[Tensor],
) -> TokenNumbers:
    """What each token came to; `shares` are the terms of the loss."""
    return TokenNumbers(
        mask_R=tensors.mask_R,
        old_R=old_R,
        log_probs_R=out.log_probs_R.detach(),
        entropy_R=out.entropy_R.detach(),
        advantages_R=tensors.advantages_R,
        correction_R=None if weights is None else weights.weight_R,
        clip_R=clip_R,
        loss_R=sum(shares, torch.zeros_like(old_R)),
        ref_R=fixed.ref_R,
    )


def _inputs(
    out: TokenLogProbs,
    tensors: TensorBatch,
    fixed: FixedLogProbs,
    old_R: Tensor,
    spec: LossSpec,
    algorithm: AlgorithmSection,
    counts: Mapping[str, MaskCounts],
    loss_factor: float,
) -> LossInputs:
    """Everything a loss may look at, with zeros where nothing means anything."""
    masks = {key: _mask(key, tensors) for key in spec.masks}
    visible = tensors.mask_R
    for mask in masks.values():
        visible = visible | mask
    rollout = _where(visible & tensors.sampled_R, tensors.rollout_log_probs_R)
    ratio_to = rollout if algorithm.old_log_probs == "rollout" else _where(visible, old_R)
    return LossInputs(
        log_probs_R=_where(visible, out.log_probs_R),
        old_log_probs_R=ratio_to,
        rollout_log_probs_R=rollout,
        ref_log_probs_R=None if fixed.ref_R is None else _where(visible, fixed.ref_R),
        advantages_R=_where(tensors.mask_R, tensors.advantages_R),
        entropy_R=_where(visible, out.entropy_R.detach()),
        mask_R=tensors.mask_R,
        masks=masks,
        sequence_R=tensors.sequence_R,
        num_sequences=tensors.num_sequences,
        counts={key: counts[key] for key in spec.masks if key in counts},
        algorithm=algorithm,
        whole_rollouts=wants_whole_rollouts(spec, algorithm),
        loss_scale=loss_factor,
    )


def _mask(key: str, tensors: TensorBatch) -> Tensor:
    """Mask of a key of `MASK_KEYS`."""
    if key == "response_mask":
        return tensors.sampled_R
    return tensors.mask_R if key == "final_response_mask" else ~tensors.sampled_R


def _where(mask_R: Tensor, values_R: Tensor) -> Tensor:
    return torch.where(mask_R, values_R, 0.0)


def _called(spec: LossSpec, inputs: LossInputs) -> object:
    """Call the loss; what it raises fails the step, by name, with the batch kept."""
    try:
        return spec.function(inputs)
    except TrainError:
        raise
    except Exception as error:
        raise TrainError(
            f"policy loss {spec.name!r} raised {type(error).__name__}: {error}"
        ) from error


def _checked(found: object, spec: LossSpec, inputs: LossInputs) -> TokenLosses:
    """Refuse what cannot be aggregated, and name what was expected."""
    what = f"policy loss {spec.name!r}"
    if not isinstance(found, TokenLosses):
        raise TrainError(f"{what} returned {type(found).__name__}, expected TokenLosses")
    if found.loss_R is None and found.total is None:
        raise TrainError(f"{what} returned neither loss_R nor total")
    if found.loss_R is not None and found.loss_R.shape != inputs.mask_R.shape:
        raise TrainError(
            f"{what} returned loss_R of shape {list(found.loss_R.shape)}, expected one loss for "
            f"each of the {len(inputs.mask_R)} response positions; the framework aggregates"
        )
    if found.total is not None and found.total.ndim != 0:
        raise TrainError(
            f"{what} returned total of shape {list(found.total.shape)}, expected a scalar"
        )
    if found.loss_R is not None and not spec.apply_loss_scale:
        raise TrainError(
            f"{what} says apply_loss_scale=False, so it must return one scaled `total` and no "
            "loss_R, which the framework would scale"
        )
    return found


def _penalty(
    out: TokenLogProbs,
    tensors: TensorBatch,
    fixed: FixedLogProbs,
    algorithm: AlgorithmSection,
    kl_coef: float,
) -> LossSums:
    if fixed.ref_R is None:
        raise TrainError(
            f"algorithm.kl_coef is {algorithm.kl_coef}, but there are no log-probabilities of "
            "a reference policy"
        )
    assert algorithm.kl_estimator is not None
    return kl_loss(
        out.log_probs_R,
        ref_log_probs_R=fixed.ref_R,
        weights_R=tensors.weights_R,
        mask_R=tensors.mask_R,
        kl_coef=kl_coef,
        estimator=algorithm.kl_estimator,
    )


def _bonus(out: TokenLogProbs, tensors: TensorBatch, entropy_coef: float) -> LossSums:
    if (
        torch.is_grad_enabled()
        and out.log_probs_R.requires_grad
        and not out.entropy_R.requires_grad
    ):
        raise TrainError(
            f"algorithm.entropy_coef is {entropy_coef:g}, but the backend gave an entropy without "
            "gradient, so the bonus would train nothing; ask the model with "
            "TensorBatch.entropy_gradient, or set entropy_coef: 0"
        )
    return entropy_loss(
        out.entropy_R,
        weights_R=tensors.weights_R,
        mask_R=tensors.mask_R,
        entropy_coef=entropy_coef,
    )
