"""The experience batcher: work over workers, and the rows of an update over ranks.

Pure and deterministic: every rank computes the same assignment from the same batch, so nothing has
to be sent around to agree on it. No number of a row changes, since the weights of a batch hold
global denominators already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.batch.halves import halves
from agentrl.batch.packing import padding_micro_batch
from agentrl.batch.records import MicroBatch, PackedBatch
from agentrl.errors import TrainError

BALANCED = 1.05
"""No micro-batch is split to bring the longest share nearer to the mean than this factor."""


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


def assign(micro_batches: Sequence[MicroBatch], workers: int) -> list[list[MicroBatch]]:
    """The micro-batches that each worker gets, about equal in tokens the model reads.

    Whole micro-batches where those are even enough. Otherwise the largest one of the longest share
    is split in two between rollouts, as long as that makes the shares more even. Every worker gets
    a rollout where there are enough.
    """
    pieces = list(micro_batches)
    while len(pieces) < workers and _split_largest(pieces, range(len(pieces))):
        pass
    assigned = least_loaded([piece.num_tokens for piece in pieces], workers)
    while True:
        loads = [sum(pieces[index].num_tokens for index in part) for part in assigned]
        longest = max(range(workers), key=lambda worker: (loads[worker], -worker))
        if loads[longest] * workers <= BALANCED * sum(loads):
            break
        finer = list(pieces)
        if not _split_largest(finer, assigned[longest]):
            break
        candidate = least_loaded([piece.num_tokens for piece in finer], workers)
        again = [sum(finer[index].num_tokens for index in part) for part in candidate]
        # Squares fall with every split that helps, also while two shares are equally long.
        if sum(load * load for load in again) >= sum(load * load for load in loads):
            break
        pieces, assigned = finer, candidate
    return [[pieces[index] for index in part] for part in assigned]


def _split_largest(pieces: list[MicroBatch], among: Sequence[int]) -> bool:
    """Replace the largest piece that can be split by its two parts; False if none can."""
    for index in sorted(among, key=lambda i: (-pieces[i].num_tokens, i)):
        parts = halves(pieces[index])
        if parts is not None:
            pieces[index : index + 1] = parts
            return True
    return False


def share(
    update: PackedBatch, rank: int, world_size: int, *, lockstep: bool = False
) -> PackedBatch:
    """The part of an update that one rank computes; the global counts stay those of the whole.

    An update that is the share of this rank already (`PackedBatch.whole`) comes back as it is.

    The gradients of all ranks *summed* are the gradient of the update.

    Args:
        update: the whole.
        rank: from 0.
        world_size: how many ranks there are.
        lockstep: whether all ranks need equally many micro-batches. They come longest first, so
            that those computed at the same time are about equal, and end with padding.

    Raises:
        TrainError: a rank that is not there.
    """
    if not 0 <= rank < world_size:
        raise TrainError(f"rank {rank} is not one of {world_size} ranks")
    if update.whole is not None:
        return update
    shares = assign(update.micro_batches, world_size)
    part = replace(update, micro_batches=tuple(shares[rank]))
    return padded(part, max(map(len, shares))) if lockstep else part


def padded(part: PackedBatch, number: int) -> PackedBatch:
    """A share of `number` micro-batches, longest first and padding last.

    Args:
        part: of one rank.
        number: micro-batches of the rank that has most.
    """
    mine = sorted(part.micro_batches, key=lambda micro: -micro.num_tokens)
    mine += [padding_micro_batch() for _ in range(number - len(mine))]
    return replace(part, micro_batches=tuple(mine))
