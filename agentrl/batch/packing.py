"""Rows into micro-batches under a token budget, without padding.

Packing decides what is computed together and how often, never what comes out: weights are global
and rows do not see each other, even where they share the tokens of a common prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentrl.batch.prefix import (
    PrefixTree,
    cheapest_runs,
    common_prefix,
    path_positions,
    prefix_keys,
    prefix_tree,
    reading_order,
    tree_tokens,
)
from agentrl.batch.records import IntArray, MicroBatch, PackedImage, Row, RowKey
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
        refuse_long_row(row.key, row.length, micro_batch_tokens)
    items = _items(rows, prefix_sharing=prefix_sharing, whole_rollouts=whole_rollouts)
    for item in items:
        if item.tokens > micro_batch_tokens:
            raise DataError(
                f"rollout {rows[item.members[0]].key.rollout_id} has {item.tokens} tokens in "
                f"{len(item.members)} rows, which the loss needs in one micro-batch; "
                f"train.micro_batch_tokens is {micro_batch_tokens}: raise it"
            )
    if prefix_sharing:
        items = _runs(items, micro_batch_tokens)
    bins = assign_bins([item.tokens for item in items], micro_batch_tokens)
    together = [
        sorted(row for index in members for row in items[index].members) for members in bins
    ]
    return tuple(
        pack_micro_batch([rows[index] for index in members], prefix_sharing=prefix_sharing)
        for members in together
    )


def refuse_long_row(key: RowKey, length: int, micro_batch_tokens: int) -> None:
    """Refuse a row that no forward pass has room for.

    Raises:
        DataError: it is longer than the budget.
    """
    if length > micro_batch_tokens:
        raise DataError(
            f"row {key} has {length} tokens, more than train.micro_batch_tokens "
            f"({micro_batch_tokens}); raise that, or lower rollout.max_context_tokens"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """Rows that go into one micro-batch."""

    members: tuple[int, ...]
    """Which rows; the first comes first in reading order."""
    tokens: int
    """Packed tokens."""
    shared: int
    """Lower bound on the tokens it shares with the item before in reading order."""


def _items(rows: Sequence[Row], *, prefix_sharing: bool, whole_rollouts: bool) -> list[_Item]:
    """Indivisible items: rows, or all rows of a rollout. In reading order when they share."""
    ids = _keys(rows) if prefix_sharing else [row.input_ids for row in rows]
    order = reading_order(ids).order if prefix_sharing else range(len(rows))
    together: dict[str | int, list[int]] = {}
    for index in order:
        together.setdefault(rows[index].key.rollout_id if whole_rollouts else index, []).append(
            index
        )
    items: list[_Item] = []
    for members in together.values():
        own = [ids[index] for index in members]
        tokens = tree_tokens(own) if prefix_sharing else sum(map(len, own))
        before = items[-1].members[0] if prefix_sharing and items else None
        shared = 0 if before is None else common_prefix(ids[before], own[0])
        items.append(_Item(members=tuple(members), tokens=tokens, shared=shared))
    return items


def _runs(items: Sequence[_Item], budget: int) -> list[_Item]:
    """Neighbours that fit into the budget together, as one item each."""
    runs: list[_Item] = []
    sizes, shared = [item.tokens for item in items], [item.shared for item in items]
    for start, end in cheapest_runs(sizes, shared, budget):
        members = tuple(row for item in items[start:end] for row in item.members)
        tokens = sum(sizes[start:end]) - sum(shared[start + 1 : end])
        runs.append(_Item(members=members, tokens=tokens, shared=shared[start]))
    return runs


def pack_micro_batch(rows: Sequence[Row], *, prefix_sharing: bool = False) -> MicroBatch:
    """Lay rows out in one micro-batch, each a tree of its own unless they share prefixes."""
    tree = _shared(rows) if prefix_sharing else _side_by_side([row.input_ids for row in rows])
    responses = np.array([len(row.mask_R) for row in rows], dtype=np.int64)
    paths = _paths(tree)
    sources = [
        # The token before each response position predicts it.
        path[row.prompt_length - 1 : -1]
        for path, row in zip(paths, rows, strict=True)
    ]
    return MicroBatch(
        rows=tuple(row.key for row in rows),
        segment_N=tree.segment_N,
        temperature_N=np.array([row.temperature for row in rows], dtype=np.float64),
        lengths_S=tree.lengths_S,
        parents_S=tree.parents_S,
        input_ids_T=tree.input_ids_T,
        position_ids_T=tree.position_ids_T,
        row_R=np.repeat(np.arange(len(rows), dtype=np.int64), responses),
        source_R=np.concatenate(sources),
        target_R=np.concatenate([row.input_ids[row.prompt_length :] for row in rows]),
        mask_R=np.concatenate([row.mask_R for row in rows]),
        sampled_R=np.concatenate([row.sampled_R for row in rows]),
        rollout_log_probs_R=np.concatenate([row.rollout_log_probs_R for row in rows]),
        advantages_R=np.concatenate([row.advantages_R for row in rows]),
        weights_R=np.repeat([row.weight for row in rows], responses),
        images=_packed_images(rows, paths),
    )


def _packed_images(rows: Sequence[Row], paths: Sequence[IntArray]) -> tuple[PackedImage, ...]:
    """The images of rows, by packed position; one in a shared part once, as the first row's."""
    found: dict[int, PackedImage] = {}
    for row, path in zip(rows, paths, strict=True):
        for number, span in enumerate(row.images):
            moved = replace(span, start=int(path[span.start]))
            found.setdefault(moved.start, PackedImage(span=moved, row=row.key, number=number))
    return tuple(found[start] for start in sorted(found))


def _keys(rows: Sequence[Row]) -> list[IntArray]:
    return prefix_keys([row.input_ids for row in rows], [row.images for row in rows])


def _shared(rows: Sequence[Row]) -> PrefixTree:
    """The tree of rows, with ids again where keys of images stood."""
    tree = prefix_tree(_keys(rows))
    ids = tree.input_ids_T
    for row, path in zip(rows, _paths(tree), strict=True):
        if row.images:
            ids[path] = row.input_ids
    return tree


def _paths(tree: PrefixTree) -> list[IntArray]:
    """[L] Packed positions of each row."""
    return [
        path_positions(tree.lengths_S, tree.parents_S, segment)
        for segment in tree.segment_N.tolist()
    ]


def _side_by_side(ids: Sequence[IntArray]) -> PrefixTree:
    return PrefixTree(
        lengths_S=np.array([len(row) for row in ids], dtype=np.int64),
        parents_S=np.full(len(ids), -1, dtype=np.int64),
        input_ids_T=np.concatenate(ids),
        position_ids_T=np.concatenate([np.arange(len(row), dtype=np.int64) for row in ids]),
        segment_N=np.arange(len(ids), dtype=np.int64),
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


def unpack(micro: MicroBatch, *, whole_rollouts: bool = False) -> tuple[MicroBatch, ...]:
    """One micro-batch per row, with the numbers the row has in the packed one.

    Args:
        micro: the packed one.
        whole_rollouts: rows of one rollout (both answers of a pair) stay together.
    """
    parts: dict[object, list[int]] = {}
    for index, key in enumerate(micro.rows):
        parts.setdefault(key.rollout_id if whole_rollouts else index, []).append(index)
    return tuple(_only(micro, rows) for rows in parts.values())


def _only(micro: MicroBatch, rows: Sequence[int]) -> MicroBatch:
    """Some rows of a micro-batch, side by side."""
    paths = [tokens_of_path(micro, int(micro.segment_N[row])) for row in rows]
    lengths_S = np.array([len(path) for path in paths], dtype=np.int64)
    own = [np.flatnonzero(micro.row_R == row) for row in rows]
    # Depth first: a path names packed tokens in ascending order.
    sources = [
        np.searchsorted(path, micro.source_R[of_row]) + start
        for path, of_row, start in zip(paths, own, np.cumsum(lengths_S) - lengths_S, strict=True)
    ]
    packed, response = np.concatenate(paths), np.concatenate(own)
    return MicroBatch(
        rows=tuple(micro.rows[row] for row in rows),
        segment_N=np.arange(len(rows), dtype=np.int64),
        temperature_N=micro.temperature_N[list(rows)],
        lengths_S=lengths_S,
        parents_S=np.full(len(rows), -1, dtype=np.int64),
        input_ids_T=micro.input_ids_T[packed],
        position_ids_T=micro.position_ids_T[packed],
        row_R=np.repeat(np.arange(len(rows), dtype=np.int64), [len(of_row) for of_row in own]),
        source_R=np.concatenate(sources),
        target_R=micro.target_R[response],
        mask_R=micro.mask_R[response],
        sampled_R=micro.sampled_R[response],
        rollout_log_probs_R=micro.rollout_log_probs_R[response],
        advantages_R=micro.advantages_R[response],
        weights_R=micro.weights_R[response],
        images=images_among(micro, paths),
    )


def images_among(micro: MicroBatch, paths: Sequence[IntArray]) -> tuple[PackedImage, ...]:
    """Images that begin among some packed positions of a micro-batch, put side by side.

    Args:
        micro: where they are.
        paths: packed positions, ascending in each path.
    """
    found: list[PackedImage] = []
    offset = 0
    for path in paths if micro.images else ():
        for image in micro.images:
            at = int(np.searchsorted(path, image.span.start))
            if at < len(path) and path[at] == image.span.start:
                found.append(replace(image, span=replace(image.span, start=offset + at)))
        offset += len(path)
    return tuple(found)


def tokens_of_path(micro: MicroBatch, segment: int) -> IntArray:
    """[L] Packed positions, ascending, from the root down to the end of a segment."""
    return path_positions(micro.lengths_S, micro.parents_S, segment)
