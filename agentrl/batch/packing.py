"""Rows into micro-batches under a token budget, without padding.

Packing decides what is computed together, never what is computed: weights are global and rows do
not see each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.batch.records import MicroBatch, Row
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


def pack_rows(rows: Sequence[Row], *, micro_batch_tokens: int) -> tuple[MicroBatch, ...]:
    """Micro-batches that hold every row once.

    Raises:
        DataError: a row that is longer than the budget; names it.
    """
    for row in rows:
        if row.length > micro_batch_tokens:
            raise DataError(
                f"row {row.key} has {row.length} tokens, more than train.micro_batch_tokens "
                f"({micro_batch_tokens}); raise that, or lower rollout.max_context_tokens"
            )
    bins = assign_bins([row.length for row in rows], micro_batch_tokens)
    return tuple(pack_micro_batch([rows[index] for index in members]) for members in bins)


def pack_micro_batch(rows: Sequence[Row]) -> MicroBatch:
    """Concatenate rows into one micro-batch."""
    lengths = np.array([row.length for row in rows], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    responses = np.array([len(row.mask_R) for row in rows], dtype=np.int64)
    return MicroBatch(
        rows=tuple(row.key for row in rows),
        lengths_S=lengths,
        temperature_S=np.array([row.temperature for row in rows], dtype=np.float64),
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


def unpack(micro: MicroBatch) -> tuple[MicroBatch, ...]:
    """One micro-batch per row, with the numbers the row has in the packed one."""
    ends = np.cumsum(micro.lengths_S)
    out = []
    for index, (end, length) in enumerate(zip(ends, micro.lengths_S, strict=True)):
        packed = slice(int(end - length), int(end))
        response = micro.row_R == index
        out.append(
            MicroBatch(
                rows=micro.rows[index : index + 1],
                lengths_S=micro.lengths_S[index : index + 1],
                temperature_S=micro.temperature_S[index : index + 1],
                input_ids_T=micro.input_ids_T[packed],
                position_ids_T=micro.position_ids_T[packed],
                row_R=np.zeros(int(response.sum()), dtype=np.int64),
                source_R=micro.source_R[response] - packed.start,
                target_R=micro.target_R[response],
                mask_R=micro.mask_R[response],
                sampled_R=micro.sampled_R[response],
                rollout_log_probs_R=micro.rollout_log_probs_R[response],
                advantages_R=micro.advantages_R[response],
                weights_R=micro.weights_R[response],
            )
        )
    return tuple(out)
