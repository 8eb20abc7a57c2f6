"""Ranks that train together fail together: a failure of one reaches all before they wait.

A rank that raised while the others went on into an all-reduce would leave them there until the time
limit, or with one update more than it has made itself. Ranks in lock-step communicate inside
every forward and backward pass, so those of a sharded backend ask each other before each
(`go_on_together`): the report of a rank that failed arrives there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from agentrl.batch.packing import padding_micro_batch, unpack
from agentrl.batch.records import MicroBatch, PackedBatch, RowKey, StepBatch
from agentrl.errors import TrainError
from agentrl.models.parts import stored_weight
from agentrl.train.backends.contract import TrainBackend

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _GoesOn:
    """Report of a rank that is about to compute."""

    tower_passes: int
    """Passes of the vision tower that its rows take."""


class _PeersFailed(TrainError):
    """Another rank has left the work at hand; its report is here and comes no second time."""

    def __init__(self, reports: list[Any]) -> None:
        super().__init__(_failure_text(reports))
        self.reports = reports


class Together(Protocol):
    """Group of ranks that fail together: a `TrainBackend`, or what else they compute with."""

    def gather(self, value: Any) -> list[Any]:
        """`gather` as in `TrainBackend.gather`."""
        ...

    def clear_gradients(self) -> None:
        """`clear_gradients` as in `TrainBackend.clear_gradients`."""
        ...


def on_every_rank(backend: Together, work: Callable[[], Result]) -> list[Result]:
    """Do one part of a step on every rank; returns the results by rank, the same list everywhere.

    Args:
        backend: of this rank.
        work: what this rank does; talks to the other ranks by passes of a lock-step backend only.

    Raises:
        TrainError: another rank failed; says which and how. This rank's own failure is raised as it
            is. The gradients are cleared either way.
    """
    failure: Exception | None = None
    result: Result | None = None
    reports: list[Any] | None = None
    try:
        result = work()
    except _PeersFailed as error:
        reports = error.reports
    except Exception as error:  # recorded for the other ranks, and raised again below
        failure = error
    if reports is None:
        own = None if failure is None else f"{type(failure).__name__}: {failure}"
        reports = backend.gather((own, result))
    failed_text = _failure_text(reports)
    if failed_text:
        backend.clear_gradients()
    if failure is not None:
        raise failure
    if failed_text:
        raise TrainError(failed_text)
    behind = [rank for rank, report in enumerate(reports) if isinstance(report, _GoesOn)]
    if behind:
        raise TrainError(
            f"rank {behind[0]} has micro-batches left when others have none; ranks in lock-step "
            "need equally many"
        )
    return [value for _, value in reports]


def go_on_together(gather: Callable[[Any], list[Any]], *, tower_passes: int = 0) -> int:
    """Before a pass in lock-step: see that every rank is about to make it.

    Args:
        gather: as `TrainBackend.gather`.
        tower_passes: passes of the vision tower that the rows of this rank take.

    Returns:
        Passes of the tower on the rank that needs most; every rank makes as many.

    Raises:
        TrainError: a rank has failed, or has no more to compute.
    """
    reports = gather(_GoesOn(tower_passes))
    if not all(isinstance(report, _GoesOn) for report in reports):
        raise _PeersFailed(reports)
    return max(report.tower_passes for report in reports)


def _failure_text(reports: Sequence[Any]) -> str:
    """Errors of the ranks that failed, in one line; empty if none did."""
    failed = [
        f"rank {rank}: {report[0]}"
        for rank, report in enumerate(reports)
        if not isinstance(report, _GoesOn) and report[0]
    ]
    return f"{len(failed)} of {len(reports)} ranks failed; {'; '.join(failed)}" if failed else ""


def check_same_batch(backend: TrainBackend, batch: StepBatch, *, version: int) -> None:
    """Each rank takes its share of the batch it was given: it has to be one batch.

    Ranks that were given their shares already hold shares of one plan, which its digest tells.

    Raises:
        TrainError: ranks hold other batches, or are at other steps.
    """
    sample = [] if batch.untrained is None else [batch.untrained]
    own = (
        version,
        [
            (
                update.global_tokens,
                update.global_sequences,
                update.horizon,
                update.num_tokens if update.whole is None else update.whole.digest,
                sorted(
                    (key, count.batch_num_tokens, count.global_valid_samples)
                    for key, count in update.counts.items()
                ),
            )
            for update in (*batch.updates, *sample)
        ],
    )
    held = backend.gather(own)
    odd = [rank for rank, other in enumerate(held) if other != held[0]]
    if odd:
        raise TrainError(
            f"rank {odd[0]} holds another batch than rank 0: (version, [(tokens, sequences, "
            "horizon, packed tokens or digest of the shares, counts by mask)]) is "
            f"{held[odd[0]]}, expected {held[0]}; hand every rank the same StepBatch, or its "
            "share of the same StepPlan"
        )


def check_shares(
    backend: TrainBackend, updates: Sequence[PackedBatch], shares: Sequence[PackedBatch]
) -> None:
    """The shares of all ranks together are the updates: every trained token once.

    The denominators are those of the updates, so a row that two ranks computed, or none, would
    weigh twice or not at all without any other sign of it.

    Raises:
        TrainError: some tokens are missing, or there twice.
    """
    held = backend.gather([_trained(part) for part in shares])
    for index, update in enumerate(updates):
        by_rank = [numbers[index] for numbers in held]
        rows, tokens = (sum(numbers) for numbers in zip(*by_rank, strict=True))
        whole = update.whole
        expected = _trained(update) if whole is None else (len(whole.rows), whole.num_trained)
        if (rows, tokens) != expected:
            raise TrainError(
                f"update {index}: the shares of {len(held)} ranks hold (rows, trained tokens) "
                f"{by_rank}, together {(rows, tokens)}, expected {expected}"
            )


def _trained(part: PackedBatch) -> tuple[int, int]:
    """(rows, trained tokens)."""
    micros = part.micro_batches
    return sum(len(m.rows) for m in micros), sum(m.num_action_tokens for m in micros)


def check_same_weights(gather: Callable[[Any], list[Any]], weights: Mapping[str, Tensor]) -> None:
    """Ranks that begin apart stay apart: nothing but gradients is ever exchanged.

    Raises:
        TrainError: ranks hold different weights.
    """
    own = {name: (tuple(weight.shape), _mark(weight)) for name, weight in weights.items()}
    held = gather(own)
    for rank, other in enumerate(held):
        odd = sorted(
            name for name in held[0].keys() | other if held[0].get(name) != other.get(name)
        )
        if odd:
            raise TrainError(
                f"rank {rank} holds other weights than rank 0 in {len(odd)} of {len(own)} "
                f"parameters, {odd[0]} among them; load the same checkpoint on every rank"
            )


def _mark(tensor: Tensor) -> Any:
    """Sum of the bit patterns, or of some in the files: equal for equal tensors, and cheap."""
    if (stored := stored_weight(tensor)) is not None:
        return stored.mark()
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return int(tensor.detach().contiguous().view(kind).sum(dtype=torch.int64))


def rows_without_finite_gradient(
    backend: TrainBackend,
    update: PackedBatch,
    part: PackedBatch,
    compute: Callable[[PackedBatch], object],
    *,
    numbers: Sequence[int] | None,
    whole_rollouts: bool = False,
) -> list[RowKey]:
    """Rows whose gradient alone is not finite, of those that this rank looks at.

    Every rank calls it inside `on_every_rank`. Gradients are left cleared.

    Args:
        backend: of this rank.
        update: the whole.
        part: this rank's share of it.
        compute: forward and backward of the micro-batches it is given.
        numbers: from `numbers_to_try`.
        whole_rollouts: rows of one rollout are tried together, and the first of them is named.
    """
    found = []
    tries = _rows_alone(backend, update, part, numbers, whole_rollouts=whole_rollouts)
    for micro, key in tries:
        backend.clear_gradients()
        compute(replace(part, micro_batches=(micro,)))
        if backend.lockstep:
            backend.reduce_gradients()
        if not math.isfinite(backend.grad_norm()) and key is not None:
            found.append(key)
    backend.clear_gradients()
    return found


def numbers_to_try(
    backend: TrainBackend, update: PackedBatch, *, whole_rollouts: bool = False
) -> list[int] | None:
    """By rank the rows (or rollouts) of its share, where ranks in lock-step hold shares alone.

    All ranks call, before `rows_without_finite_gradient`; None where each knows the whole update.
    """
    if update.whole is None or not backend.lockstep:
        return None
    return backend.gather(len(_alone(update, whole_rollouts=whole_rollouts)))


def _rows_alone(
    backend: TrainBackend,
    update: PackedBatch,
    part: PackedBatch,
    numbers: Sequence[int] | None,
    *,
    whole_rollouts: bool,
) -> list[tuple[MicroBatch, RowKey | None]]:
    """Ranks in lock-step take turns, since the norm is one over all of them."""
    if not backend.lockstep:
        return [(row, row.rows[0]) for row in _alone(part, whole_rollouts=whole_rollouts)]
    rows = _alone(update, whole_rollouts=whole_rollouts)
    if numbers is None:
        own = [index % backend.world_size == backend.rank for index in range(len(rows))]
    else:
        before, after = numbers[: backend.rank], numbers[backend.rank + 1 :]
        own = [False] * sum(before) + [True] * len(rows) + [False] * sum(after)
        rows = [padding_micro_batch()] * sum(before) + rows + [padding_micro_batch()] * sum(after)
    return [
        (row, row.rows[0]) if mine else (padding_micro_batch(), None)
        for row, mine in zip(rows, own, strict=True)
    ]


def _alone(packed: PackedBatch, *, whole_rollouts: bool) -> list[MicroBatch]:
    return [
        row
        for micro in packed.micro_batches
        for row in unpack(micro, whole_rollouts=whole_rollouts)
    ]
