"""Micro-batches over workers and ranks, each to whom least was given so far.

Pure and deterministic: every rank computes the same assignment from the same batch, so nothing has
to be sent around to agree on it. Nothing is cut or repacked and no number changes, since the
weights of a batch hold global denominators already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.batch.records import MicroBatch, PackedBatch
from agentrl.errors import TrainError


def least_loaded(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Indices of `sizes` by worker: largest first, each to the worker with the least so far.

    No two workers differ by more than the largest size. Among equals the first index and the first
    worker win; a worker's indices come in their old order. With fewer sizes than workers some get
    nothing.

    Example:
        >>> least_loaded([5, 4, 3, 3], workers=2)
        [[0, 3], [1, 2]]

    Raises:
        TrainError: fewer than one worker.
    """
    if workers < 1:
        raise TrainError(f"work cannot be given to {workers} workers, expected at least 1")
    given = [0] * workers
    assigned: list[list[int]] = [[] for _ in range(workers)]
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        worker = min(range(workers), key=lambda w: (given[w], w))
        assigned[worker].append(index)
        given[worker] += sizes[index]
    return [sorted(members) for members in assigned]


def assign(micro_batches: Sequence[MicroBatch], workers: int) -> list[list[int]]:
    """Indices of the micro-batches that each worker gets, by tokens the model reads."""
    return least_loaded([micro.num_tokens for micro in micro_batches], workers)


def share(update: PackedBatch, rank: int, world_size: int) -> PackedBatch:
    """The part of an update that one rank computes; the global counts stay those of the whole.

    The gradients of all ranks *summed* are the gradient of the update.

    Raises:
        TrainError: a rank that is not there.
    """
    if not 0 <= rank < world_size:
        raise TrainError(f"rank {rank} is not one of {world_size} ranks")
    mine = assign(update.micro_batches, world_size)[rank]
    return replace(update, micro_batches=tuple(update.micro_batches[index] for index in mine))
