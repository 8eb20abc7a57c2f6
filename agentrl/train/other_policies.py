"""Asks the old policy, reference, teacher and critic before the first update of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from agentrl.batch.credit import compute_credit
from agentrl.batch.records import MicroBatch, PackedBatch, RowKey, RowNumbers, StepBatch
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import TrainError
from agentrl.train.backends.agreement import on_every_rank
from agentrl.train.backends.contract import TrainBackend
from agentrl.train.critic import Critic
from agentrl.train.distill.records import Teacher
from agentrl.train.logprob_worker import LogProbSource, LogProbWorker, RowLogProbs
from agentrl.train.objective import KnownLogProbs
from agentrl.train.reference import Reference

Numbers = TypeVar("Numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Numbers of other models for all rows of a step; the same on every rank."""

    log_probs: KnownLogProbs
    """Log-probabilities of the old policy, the reference and the teacher."""
    values: RowNumbers | None
    """Values of the critic before the step; None without one."""
    teacher_s: float | None = None
    """Seconds that the teacher took; None without one."""

    def with_ref(self, ref: RowLogProbs) -> Answers:
        """The same with what the reference was asked before."""
        known = self.log_probs
        if known.ref is None:
            return self
        return replace(self, log_probs=replace(known, ref={**ref, **known.ref}))


def check_parts(
    algorithm: AlgorithmSection,
    reference: LogProbSource | None,
    critic: Critic | None,
    teacher: Teacher | None = None,
) -> None:
    """Refuse an algorithm that needs a model which is not there.

    Raises:
        TrainError: says which model is missing, and how to do without it.
    """
    if algorithm.needs_reference and reference is None:
        raise TrainError(
            f"algorithm.kl_coef is {algorithm.kl_coef}, but the trainer was given no reference "
            "policy; load one (load_reference), or set algorithm.kl_coef: 0"
        )
    if algorithm.reference_update and not isinstance(reference, Reference):
        raise TrainError(
            f"algorithm.reference_update.every_steps is {algorithm.reference_update.every_steps}, "
            f"but a {type(reference).__name__} cannot follow the policy; give the trainer a "
            "Reference"
        )
    if algorithm.needs_values and critic is None:
        raise TrainError(
            f"algorithm.advantage_estimator is {algorithm.advantage_estimator}, but the trainer "
            "was given no critic; make one (Critic), or choose an estimator without one"
        )
    if algorithm.distill is not None and teacher is None:
        raise TrainError(
            f"algorithm.distill has a teacher of kind {algorithm.distill.teacher.kind}, but the "
            "trainer was given none; make one (agentrl.train.distill), or remove algorithm.distill"
        )


def ask_other_policies(
    backend: TrainBackend,
    batch: StepBatch,
    shares: Sequence[PackedBatch],
    *,
    algorithm: AlgorithmSection,
    reference: LogProbSource | None,
    critic: Critic | None,
    teacher: Teacher | None = None,
) -> Answers:
    """Ask them; every rank asks for its share, and gets the numbers of all others.

    Later epochs may give it their rows, and a reward with a KL is divided by all of them. The
    teacher has K numbers a token, so where neither is so each rank keeps its own.

    The old policy needs no pass of its own while it is the policy at hand: in a step of one update
    whose reward holds no KL, or where the sampler's numbers stand for it.

    Raises:
        TrainError: a number that is not finite; names the rows.
    """
    micros = [micro for part in shares if part.epoch == 0 for micro in part.micro_batches]

    def ask(
        source: Callable[[Sequence[MicroBatch]], Mapping[RowKey, Numbers]],
    ) -> Mapping[RowKey, Numbers]:
        parts = on_every_rank(backend, lambda: source(micros))
        return {key: numbers for part in parts for key, numbers in part.items()}

    def ask_for_own(
        source: Callable[[Sequence[MicroBatch]], Mapping[RowKey, Numbers]],
    ) -> Mapping[RowKey, Numbers]:
        own: dict[RowKey, Numbers] = {}
        on_every_rank(backend, lambda: own.update(source(micros)))
        return own

    rows_stay = batch.credit is None and not any(part.epoch for part in shares)

    several = len(batch.updates) > 1 or _kl_in_reward(algorithm)
    old = ref = values = None
    if algorithm.old_log_probs != "rollout" and several:
        old = ask(LogProbWorker(backend, name="policy").row_log_probs)
    if reference is not None:
        ref = ask(reference.row_log_probs)
    if critic is not None:
        values = _wide(ask(critic.row_values))
    taught, teacher_s, top_k = None, None, 0
    if teacher is not None and algorithm.distill is not None:
        began, prompts = time.perf_counter(), batch.teacher_prompts
        ask_teacher = ask_for_own if rows_stay else ask
        taught = ask_teacher(lambda own: teacher.ask(own, prompts=prompts))
        teacher_s, top_k = time.perf_counter() - began, algorithm.distill.top_k
    return Answers(
        log_probs=KnownLogProbs(old=old, ref=ref, teacher=taught, top_k=top_k),
        values=values,
        teacher_s=teacher_s,
    )


def with_advantages(
    batch: StepBatch, answers: Answers, *, kl_coef: float, algorithm: AlgorithmSection
) -> StepBatch:
    """The batch with its advantages; as it is where they are final.

    The KL in the reward is that of the policy the tokens came from: the sampler's numbers with
    `old_log_probs: rollout`, else those of the pass before the step.
    """
    if batch.credit is None:
        return batch
    old, ref = answers.log_probs.old, answers.log_probs.ref
    if old is None and _kl_in_reward(algorithm):
        old = _rollout_log_probs(batch)
    return compute_credit(
        batch,
        old=None if old is None else _wide(old),
        ref=None if ref is None else _wide(ref),
        values=answers.values,
        kl_coef=kl_coef,
        algorithm=algorithm,
    )


def _kl_in_reward(algorithm: AlgorithmSection) -> bool:
    return algorithm.needs_reference and not algorithm.use_kl_loss


def _rollout_log_probs(batch: StepBatch) -> RowNumbers:
    found: dict[RowKey, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for micro in (m for update in batch.updates if update.epoch == 0 for m in update.micro_batches):
        for index, key in enumerate(micro.rows):
            found[key] = micro.rollout_log_probs_R[micro.row_R == index]
    return found


def _wide(numbers: RowLogProbs) -> RowNumbers:
    return {key: row.astype(np.float64) for key, row in numbers.items()}
