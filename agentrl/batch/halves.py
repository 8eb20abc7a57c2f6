"""Splits a micro-batch in two between rollouts, so that ranks can be given equal work.

No number of a row changes: weights hold global denominators. Tokens that rows of both parts begin
with are read in both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.batch.packing import images_among, tokens_of_path
from agentrl.batch.records import MicroBatch


def take_rows(micro: MicroBatch, rows: Sequence[int]) -> MicroBatch:
    """A micro-batch of some rows of another, which still share what they begin with.

    Args:
        micro: where the rows are.
        rows: indices into `micro.rows`, ascending.
    """
    taken = np.array(rows, dtype=np.int64)
    segments = sorted({part for row in rows for part in _path(micro, int(micro.segment_N[row]))})
    # Depth first: tokens of the segments that stay keep their order.
    owner_T = np.repeat(np.arange(len(micro.lengths_S)), micro.lengths_S)
    tokens = np.isin(owner_T, segments).nonzero()[0]
    number = {-1: -1, **{old: new for new, old in enumerate(segments)}}
    response = np.isin(micro.row_R, taken)
    return MicroBatch(
        rows=tuple(micro.rows[row] for row in rows),
        segment_N=np.array([number[int(micro.segment_N[row])] for row in rows], dtype=np.int64),
        temperature_N=micro.temperature_N[taken],
        lengths_S=micro.lengths_S[segments],
        parents_S=np.array([number[int(micro.parents_S[s])] for s in segments], dtype=np.int64),
        input_ids_T=micro.input_ids_T[tokens],
        position_ids_T=micro.position_ids_T[tokens],
        row_R=np.searchsorted(taken, micro.row_R[response]),
        source_R=np.searchsorted(tokens, micro.source_R[response]),
        target_R=micro.target_R[response],
        mask_R=micro.mask_R[response],
        sampled_R=micro.sampled_R[response],
        rollout_log_probs_R=micro.rollout_log_probs_R[response],
        advantages_R=micro.advantages_R[response],
        weights_R=micro.weights_R[response],
        images=images_among(micro, [tokens]),
    )


def halves(micro: MicroBatch) -> tuple[MicroBatch, MicroBatch] | None:
    """Two parts of about equal length; None if all rows are of one rollout.

    The rows of a rollout stay together: a loss may be one of whole rollouts.
    """
    members = _rollouts(micro)
    if len(members) < 2:
        return None
    sizes = [sum(len(tokens_of_path(micro, int(micro.segment_N[r]))) for r in m) for m in members]
    before = np.cumsum(sizes)[:-1]
    index = int(np.abs(before - sum(sizes) / 2).argmin()) + 1
    first = sorted(row for part in members[:index] for row in part)
    second = sorted(row for part in members[index:] for row in part)
    return take_rows(micro, first), take_rows(micro, second)


def within_images(
    micro_batches: Sequence[MicroBatch], image_tokens: int | None
) -> tuple[MicroBatch, ...]:
    """The same rollouts in micro-batches whose images have at most so many features.

    An image that several rows show counts once. A rollout of more has a micro-batch to itself.

    Args:
        micro_batches: packed by tokens.
        image_tokens: most features of images in a micro-batch; None sets no bound.
    """
    if image_tokens is None:
        return tuple(micro_batches)
    return tuple(part for micro in micro_batches for part in _parts(micro, image_tokens))


def _parts(micro: MicroBatch, image_tokens: int) -> list[MicroBatch]:
    """A micro-batch as it is, or in several of neighbouring rollouts."""
    parts: list[list[int]] = []
    held: dict[str, int] = {}
    for members in _rollouts(micro):
        paths = [tokens_of_path(micro, int(micro.segment_N[row])) for row in members]
        own = {i.span.digest: i.span.features for i in images_among(micro, paths)}
        if not parts or sum((held | own).values()) > image_tokens:
            parts.append([])
            held = {}
        parts[-1] += members
        held |= own
    return [micro] if len(parts) < 2 else [take_rows(micro, sorted(part)) for part in parts]


def _rollouts(micro: MicroBatch) -> list[list[int]]:
    """Rows of each rollout, by index."""
    found: dict[str, list[int]] = {}
    for index, key in enumerate(micro.rows):
        found.setdefault(key.rollout_id, []).append(index)
    return list(found.values())


def _path(micro: MicroBatch, segment: int) -> list[int]:
    found = []
    while segment != -1:
        found.append(segment)
        segment = int(micro.parents_S[segment])
    return found
