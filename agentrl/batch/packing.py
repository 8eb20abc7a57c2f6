"""Rows into micro-batches under a token budget, without padding.

Packing decides what is computed together, never what is computed: weights are global and rows do
not see each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.batch.records import IntArray, MicroBatch, Row
from agentrl.errors import DataError


def assign_bins(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `lengths` by bin, no bin above `budget`: first fit, longest first.

    Inside a bin the indices keep their order, so that siblings stay neighbours.

    Example:
        >>> assign_bins([3, 5, 2, 4], budget=7)
        [[1, 2], [0, 3]]

    Raises:
        DataError: a length above the budget.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        if length > budget:
            raise DataError(f"a row of {length} tokens does not fit into a budget of {budget}")
        for slot, free in enumerate(room):
            if length <= free:
                bins[slot].append(index)
                room[slot] -= length
                break
        else:
            bins.append([index])
            room.append(budget - length)
    return [sorted(members) for members in bins]


def pack_rows(
    rows: Sequence[Row],
    *,
    micro_batch_tokens: int,
    prefix_sharing: bool = False,
    whole_rollouts: bool = False,
) -> tuple[MicroBatch, ...]:
    """Micro-batches that hold every row once.

    Args:
        rows: in any order.
        micro_batch_tokens: most packed tokens in a micro-batch; shared ones count once.
        prefix_sharing: whether rows share the tokens of a common prefix.
        whole_rollouts: keep the rows of a rollout in one micro-batch.

    Raises:
        DataError: a row, or with `whole_rollouts` a rollout, that is larger than the budget.
    """
    for row in rows:
        if row.length > micro_batch_tokens:
            raise DataError(
                f"row {row.key} has {row.length} tokens, more than train.micro_batch_tokens "
                f"({micro_batch_tokens}); raise that, or lower rollout.max_context_tokens"
            )
    bins = assign_bins([row.length for row in rows], micro_batch_tokens)
    return tuple(pack_micro_batch([rows[index] for index in members]) for members in bins)


def pack_micro_batch(rows: Sequence[Row], *, prefix_sharing: bool = False) -> MicroBatch:
    """Lay rows out in one micro-batch."""
    lengths = np.array([row.length for row in rows], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    responses = np.array([len(row.mask_R) for row in rows], dtype=np.int64)
    return MicroBatch(
        rows=tuple(row.key for row in rows),
        segment_N=np.arange(len(rows), dtype=np.int64),
        temperature_N=np.array([row.temperature for row in rows], dtype=np.float64),
        lengths_S=lengths,
        parents_S=np.full(len(rows), -1, dtype=np.int64),
        input_ids_T=np.concatenate([row.input_ids for row in rows]),
        position_ids_T=np.concatenate([np.arange(n, dtype=np.int64) for n in lengths]),
        row_R=np.repeat(np.arange(len(rows), dtype=np.int64), responses),
        source_R=np.concatenate(
            [
                start + row.prompt_length - 1 + np.arange(len(row.mask_R), dtype=np.int64)
                for start, row in zip(starts, rows, strict=True)
            ]
        ),
        target_R=np.concatenate([row.input_ids[row.prompt_length :] for row in rows]),
        mask_R=np.concatenate([row.mask_R for row in rows]),
        sampled_R=np.concatenate([row.sampled_R for row in rows]),
        rollout_log_probs_R=np.concatenate([row.rollout_log_probs_R for row in rows]),
        advantages_R=np.concatenate([row.advantages_R for row in rows]),
        weights_R=np.repeat([row.weight for row in rows], responses),
    )


def padding_micro_batch() -> MicroBatch:
    """A micro-batch that weighs nothing: one token, no row, no response position.

    A rank that has run out of rows computes it to keep in step with the others. Its loss, an empty
    sum, is connected to every weight, with gradient zero.
    """
    none, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
    nowhere = np.zeros(0, dtype=np.bool_)
    return MicroBatch(
        rows=(),
        segment_N=none,
        temperature_N=nothing,
        lengths_S=np.ones(1, dtype=np.int64),
        parents_S=np.full(1, -1, dtype=np.int64),
        input_ids_T=np.zeros(1, dtype=np.int64),
        position_ids_T=np.zeros(1, dtype=np.int64),
        row_R=none,
        source_R=none,
        target_R=none,
        mask_R=nowhere,
        sampled_R=nowhere,
        rollout_log_probs_R=nothing,
        advantages_R=nothing,
        weights_R=nothing,
    )


def unpack(micro: MicroBatch) -> tuple[MicroBatch, ...]:
    """One micro-batch per row, with the numbers the row has in the packed one."""
    return tuple(_alone(micro, index) for index in range(len(micro.rows)))


def _alone(micro: MicroBatch, index: int) -> MicroBatch:
    packed = tokens_of_path(micro, int(micro.segment_N[index]))
    response = micro.row_R == index
    return MicroBatch(
        rows=micro.rows[index : index + 1],
        segment_N=np.zeros(1, dtype=np.int64),
        temperature_N=micro.temperature_N[index : index + 1],
        lengths_S=np.array([len(packed)], dtype=np.int64),
        parents_S=np.full(1, -1, dtype=np.int64),
        input_ids_T=micro.input_ids_T[packed],
        position_ids_T=micro.position_ids_T[packed],
        row_R=np.zeros(int(response.sum()), dtype=np.int64),
        # Depth first: a path names packed tokens in ascending order.
        source_R=np.searchsorted(packed, micro.source_R[response]),
        target_R=micro.target_R[response],
        mask_R=micro.mask_R[response],
        sampled_R=micro.sampled_R[response],
        rollout_log_probs_R=micro.rollout_log_probs_R[response],
        advantages_R=micro.advantages_R[response],
        weights_R=micro.weights_R[response],
    )


def tokens_of_path(micro: MicroBatch, segment: int) -> IntArray:
    """[L] Packed positions from the root down to the end of a segment."""
    ends = np.cumsum(micro.lengths_S)
    path: list[IntArray] = []
    while segment != -1:
        end = int(ends[segment])
        path.append(np.arange(end - int(micro.lengths_S[segment]), end, dtype=np.int64))
        segment = int(micro.parents_S[segment])
    return np.concatenate(path[::-1])
