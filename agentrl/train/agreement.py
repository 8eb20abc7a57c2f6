"""Ranks that train together fail together: what goes wrong on one is told to all before they wait.

A rank that raised while the others went on into an all-reduce would leave them there until the time
limit, or with one update more than it has made itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from agentrl.batch.records import StepBatch
from agentrl.errors import TrainError
from agentrl.train.backend import TrainBackend

Result = TypeVar("Result")


def on_every_rank(backend: TrainBackend, work: Callable[[], Result]) -> list[Result]:
    """Do one part of a step on every rank; returns the results by rank, the same list everywhere.

    Args:
        backend: of this rank.
        work: what this rank does; must not talk to the other ranks.

    Raises:
        TrainError: another rank failed; says which and how. This rank's own failure is raised as it
            is. The gradients are cleared either way.
    """
    failure: Exception | None = None
    result: Result | None = None
    try:
        result = work()
    except Exception as error:  # recorded for the other ranks, and raised again below
        failure = error
    own = None if failure is None else f"{type(failure).__name__}: {failure}"
    reports: list[tuple[str | None, Result]] = backend.gather((own, result))
    failed = [f"rank {rank}: {report}" for rank, (report, _) in enumerate(reports) if report]
    if failed:
        backend.clear_gradients()
    if failure is not None:
        raise failure
    if failed:
        raise TrainError(f"{len(failed)} of {len(reports)} ranks failed; {'; '.join(failed)}")
    return [value for _, value in reports]


def check_same_batch(backend: TrainBackend, batch: StepBatch, *, version: int) -> None:
    """Each rank takes its share of the batch it was given: it has to be one batch.

    Raises:
        TrainError: ranks hold other batches, or are at other steps.
    """
    own = (
        version,
        [
            (update.global_tokens, update.global_sequences, update.horizon, update.num_tokens)
            for update in batch.updates
        ],
    )
    held = backend.gather(own)
    odd = [rank for rank, other in enumerate(held) if other != held[0]]
    if odd:
        raise TrainError(
            f"rank {odd[0]} holds another batch than rank 0: (version, [(tokens, sequences, "
            f"horizon, packed tokens)]) is {held[odd[0]]}, expected {held[0]}; hand every rank the "
            "same StepBatch"
        )
