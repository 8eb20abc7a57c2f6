"""Trees of common prefixes: tokens that several rows begin with are read once.

A group shares its prompt, siblings may branch later, and rollouts with one sample per turn or with
compaction repeat their own history. All of these are one case: rows in lexicographic order, where
each row has its longest common prefix with a neighbour. A causal model gives a token the same
hidden state in every row that continues it, so sharing changes what is computed twice and nothing
else.

Legend: `N` rows, `S` segments, `T` packed tokens, `I` items that must not be split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from agentrl.batch.records import IntArray
from agentrl.types import ImageSpan

_COST_OF_A_PASS = 64
"""Cost of a further micro-batch beside its tokens, in tokens; breaks ties between splits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOrder:
    """Rows sorted so that those with a common prefix are neighbours."""

    order: tuple[int, ...]
    """[N] Index of the row at each position of the order."""
    shared: IntArray
    """[N] Tokens that the row at each position shares with the one before; 0 at the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """Rows laid out depth first, each token of a common prefix once; see `MicroBatch`."""

    lengths_S: IntArray
    """[S] Tokens of each segment; at least 1."""
    parents_S: IntArray
    """[S] The segment each one continues, -1 for a root."""
    input_ids_T: IntArray
    """[T] Token ids."""
    position_ids_T: IntArray
    """[T] Positions, from 0 in every row."""
    segment_N: IntArray
    """[N] Segment with which each row ends, in the order the rows came in."""


def prefix_keys(rows: Sequence[IntArray], images: Sequence[Sequence[ImageSpan]]) -> list[IntArray]:
    """Numbers by which rows are compared: ids, and in the place of an image one that is its own.

    The ids of two images can be equal although the images are not. No segment ends inside an image.

    Args:
        rows: ids of each.
        images: of each row, by position.

    Example:
        >>> spans = [[ImageSpan(digest=name, start=1, tokens=1, grid=(1, 1, 1))] for name in "ab"]
        >>> [keys.tolist() for keys in prefix_keys([np.array([5, 9])] * 2, spans)]
        [[5, -1], [5, -2]]
    """
    numbers: dict[tuple[str, bytes], int] = {}
    found = []
    for ids, spans in zip(rows, images, strict=True):
        keys = ids.copy() if spans else ids
        for span in spans:
            shown = span.digest, ids[span.start : span.end].tobytes()
            keys[span.start : span.end] = numbers.setdefault(shown, -1 - len(numbers))
        found.append(keys)
    return found


def common_prefix(one: IntArray, other: IntArray) -> int:
    """Number of tokens that both begin with.

    Example:
        >>> common_prefix(np.array([1, 2, 3]), np.array([1, 2, 4, 5]))
        2
    """
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def reading_order(rows: Sequence[IntArray]) -> ReadingOrder:
    """Lexicographic order, a prefix before what continues it; equal rows keep their order."""
    # Big-endian bytes compare as the numbers do.
    keys = [row.astype(">i8").tobytes() for row in rows]
    order = tuple(sorted(range(len(rows)), key=lambda index: keys[index]))
    shared = [common_prefix(rows[a], rows[b]) for a, b in pairwise(order)]
    return ReadingOrder(order=order, shared=np.array([0, *shared][: len(rows)], dtype=np.int64))


def tree_tokens(rows: Sequence[IntArray]) -> int:
    """T of the tree of these rows."""
    return sum(map(len, rows)) - int(reading_order(rows).shared.sum())


def prefix_tree(rows: Sequence[IntArray]) -> PrefixTree:
    """The tree of rows that each hold at least one token.

    Example:
        >>> tree = prefix_tree([np.array([1, 2, 3]), np.array([1, 2]), np.array([7])])
        >>> tree.lengths_S.tolist(), tree.parents_S.tolist(), tree.segment_N.tolist()
        ([2, 1, 1], [-1, 0, -1], [1, 0, 2])
    """
    reading = reading_order(rows)
    ids = [rows[index] for index in reading.order]
    shared = reading.shared
    parents: list[int] = []
    spans: list[tuple[int, int, int]] = []
    segment_N = np.full(len(rows), -1, dtype=np.int64)
    # Each entry: rows [low, high) in reading order agree on `depth` tokens, which end in `parent`.
    waiting = [(0, len(rows), 0, -1)]
    while waiting:
        low, high, depth, parent = waiting.pop()
        stop = int(shared[low + 1 : high].min()) if high - low > 1 else len(ids[low])
        if stop > depth:
            spans.append((low, depth, stop))
            parents.append(parent)
            parent = len(parents) - 1
        while low < high and len(ids[low]) == stop:
            segment_N[reading.order[low]] = parent
            low += 1
        if low == high:
            continue
        bounds = [low, *(low + 1 + np.flatnonzero(shared[low + 1 : high] == stop)).tolist(), high]
        branches = reversed(list(pairwise(bounds)))
        waiting.extend((a, b, stop, parent) for a, b in branches)
    return PrefixTree(
        lengths_S=np.array([stop - depth for _, depth, stop in spans], dtype=np.int64),
        parents_S=np.array(parents, dtype=np.int64),
        input_ids_T=np.concatenate([ids[row][depth:stop] for row, depth, stop in spans]),
        position_ids_T=np.concatenate(
            [np.arange(depth, stop, dtype=np.int64) for _, depth, stop in spans]
        ),
        segment_N=segment_N,
    )


def path_positions(lengths_S: IntArray, parents_S: IntArray, segment: int) -> IntArray:
    """[L] Packed positions, ascending, from the root down to the end of a segment."""
    ends = np.cumsum(lengths_S)
    path: list[IntArray] = []
    while segment != -1:
        end = int(ends[segment])
        path.append(np.arange(end - int(lengths_S[segment]), end, dtype=np.int64))
        segment = int(parents_S[segment])
    return np.concatenate(path[::-1])


def cheapest_runs(
    sizes_I: Sequence[int], shared_I: Sequence[int], budget: int
) -> list[tuple[int, int]]:
    """Split a sequence of items into runs `[start, end)` that repeat as few tokens as possible.

    A run costs its tokens: those of its first item, and of each further one those that it does not
    share with the item before.

    Args:
        sizes_I: tokens of each item; none above the budget.
        shared_I: tokens each item shares with the one before it; at most the size of either.
        budget: most tokens in a run.

    Example:
        >>> cheapest_runs([6, 6, 6], [0, 1, 5], budget=11)
        [(0, 1), (1, 3)]
    """
    number = len(sizes_I)
    sizes, shared = np.array(sizes_I, dtype=np.int64), np.array(shared_I, dtype=np.int64)
    # A run [start, end) has new[end] - new[start] + shared[start] tokens.
    new = np.concatenate([[0], np.cumsum(sizes - shared)])
    best = np.zeros(number + 1, dtype=np.int64)
    begins = np.zeros(number + 1, dtype=np.int64)
    earliest = 0
    for end in range(1, number + 1):
        while new[end] - new[earliest] + shared[earliest] > budget:
            earliest += 1
        before = slice(earliest, end)
        total = best[before] - new[before] + shared[before]
        start = earliest + int(total.argmin())
        begins[end] = start
        best[end] = total.min() + new[end] + _COST_OF_A_PASS
    runs: list[tuple[int, int]] = []
    end = number
    while end:
        runs.append((int(begins[end]), end))
        end = int(begins[end])
    return runs[::-1]
