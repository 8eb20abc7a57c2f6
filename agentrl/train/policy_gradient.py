"""The gradient of the policy: forward, loss and backward of the micro-batches of one rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from torch import Tensor

from agentrl.batch.records import MicroBatch, PackedBatch
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.contract import ModelPasses, TrainBackend
from agentrl.train.logprob_worker import check_finite
from agentrl.train.losses.registry import find_loss, wants_whole_rollouts
from agentrl.train.meter.phases import phase
from agentrl.train.model.logprobs import LossOf
from agentrl.train.objective import KnownLogProbs, Objective, objective, with_wishes
from agentrl.train.token_record import TokenRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """Computes the part of an update's loss that one rank adds."""

    total: float
    """Policy term, penalty and bonus."""
    penalty: float
    """The penalty alone."""
    bonus: float
    """The entropy bonus alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computed:
    """Numbers of one micro-batch, once its graph is gone."""

    objective: Objective
    """Loss, without gradient, and counts over its tokens."""
    log_probs_R: Tensor
    """[R] As the loss saw them."""


class MicroBatchProgress:
    """Counts the micro-batches of a step for a listener; from any thread."""

    def __init__(self, listener: Callable[[int, int], None] | None, total: int) -> None:
        self._listener, self._total, self._done = listener, total, 0
        self._lock = threading.Lock()

    def advance(self) -> None:
        """One more is done."""
        with self._lock:
            self._done += 1
            if self._listener is not None:
                self._listener(self._done, self._total)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPass:
    """Forward and backward of the policy, with all that a step knows of its rows."""

    name: ClassVar[str] = "policy"
    """For messages."""
    backend: TrainBackend
    """Runs the model and holds the gradient."""
    algorithm: AlgorithmSection
    """Resolved."""
    known: KnownLogProbs
    """Log-probabilities of other policies."""
    kl_coef: float
    """Weight of the penalty in this step."""
    temperature: float | None
    """Temperature at which the rows must have been sampled; None takes that of each row."""
    recorder: TokenRecorder
    """Notes every token, where that is asked for."""

    def accumulate(
        self,
        part: PackedBatch,
        metrics: MetricBag,
        *,
        compare_sampler: bool = False,
        progress: MicroBatchProgress | None = None,
    ) -> PolicyLoss:
        """Add the gradient of `part`, and return its share of the loss.

        Args:
            part: this rank's share of an update, with the counts of the whole.
            metrics: counts over the tokens go there.
            compare_sampler: measure how far the old policy is from the sampler.
            progress: advanced by every micro-batch.

        Raises:
            TrainError: a log-probability that is not finite, or a row of another temperature; names
                it.
        """

        def compute(model: ModelPasses, micro: MicroBatch) -> _Computed:
            _check_temperature(micro, self.temperature)
            tensors = model.to_tensors(micro)
            fixed = self.known.of(micro, like=tensors.weights_R)
            evaluate = partial(
                objective,
                tensors=tensors,
                fixed=fixed,
                algorithm=self.algorithm,
                counts=part.counts,
                kl_coef=self.kl_coef,
                compare_sampler=compare_sampler,
                loss_factor=self.backend.loss_factor,
            )
            asked = with_wishes(tensors, fixed, self.algorithm)
            with phase("policy forward"):
                out = model.log_probs(asked, loss_of=self._loss_of(evaluate))
            with phase("policy loss"):
                result = evaluate(out, keep_tokens=self.recorder.listens)
            with phase("policy backward"):
                model.backward(result.loss)
            if progress is not None:
                progress.advance()
            return _Computed(
                objective=replace(result, loss=result.loss.detach()),
                log_probs_R=out.log_probs_R.detach(),
            )

        total, penalty, bonus = 0.0, 0.0, 0.0
        done = self.backend.run_each(part.micro_batches, compute)
        # Read only now: a GPU has work all the while that Python launches more.
        for micro, computed in zip(part.micro_batches, done, strict=True):
            check_finite(computed.log_probs_R, micro)
            result = computed.objective
            if result.tokens is not None:
                self.recorder.note(micro, result.tokens)
            metrics.merge(result.metrics)
            total += float(result.loss)
            penalty += result.penalty
            bonus += result.bonus
        return PolicyLoss(total=total, penalty=penalty, bonus=bonus)

    def _loss_of(self, evaluate: Callable[..., Objective]) -> LossOf | None:
        """The loss of a part of the tokens; None where a token's loss depends on others."""
        if wants_whole_rollouts(find_loss(self.algorithm.policy_loss), self.algorithm):
            return None
        if self.algorithm.distill is not None and self.algorithm.distill.top_k:
            return None  # it looks at more than the log-probability of the token
        return lambda out: evaluate(out, compare_sampler=False, measure=False).loss


def _check_temperature(micro: MicroBatch, wanted: float | None) -> None:
    if wanted is None:
        return
    for key, found in zip(micro.rows, micro.temperature_N, strict=True):
        if found != wanted:
            raise TrainError(
                f"row {key} was sampled at temperature {found}, the trainer expects {wanted}"
            )
