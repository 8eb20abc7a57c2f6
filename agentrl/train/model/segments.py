"""Which keys each block of queries attends to, when packed rows may share prefixes.

A token attends to every token on the path from its tree's root to itself. Segments are laid out
depth first, so a path names packed positions in ascending order and its k-th token has position k.
Where a model reads an image as a whole, each of its tokens attends to the ones behind it, too.

Legend: `S` segments, `B` queries of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from agentrl.models.attention_layers import Chunk, Window, first_seen


def query_block(heads: int, kv_heads: int, dtype: torch.dtype) -> int:
    """Queries whose scores a CPU forms together, a multiple of 16.

    Enough rows (queries times the heads that share a key head) for fast products, few enough for
    their scores to stay in the cache. Found by measurement: float32 products gain nothing above a
    hundred rows and lose a third at four hundred, bfloat16 ones need that many.
    """
    rows = 128 if dtype.itemsize >= 4 else 384
    return max(16, rows * kv_heads // heads // 16 * 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """The layout of a micro-batch, as its attention needs it. See `MicroBatch`."""

    lengths: tuple[int, ...]
    """[S] Packed tokens of each segment."""
    parents: tuple[int, ...]
    """[S] The segment each one continues, -1 for a root."""
    mutual: tuple[tuple[int, int], ...] = ()
    """Packed positions `[start, end)`, ascending, whose tokens all see each other: images of models
    that read them as a whole. Each lies in one segment."""
    kernel: str = "auto"
    """`model.attention`: what computes it."""

    @classmethod
    def of_rows(cls, lengths: Sequence[int]) -> Segments:
        """Rows side by side that share nothing."""
        return cls(lengths=tuple(lengths), parents=(-1,) * len(lengths))

    @property
    def num_tokens(self) -> int:
        """T: tokens that the model reads."""
        return sum(self.lengths)

    @property
    def shared(self) -> bool:
        """True if any segment continues another."""
        return any(parent >= 0 for parent in self.parents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Queries that see the same stretch of keys, but for a mask over the last of these."""

    begin: int
    """Packed position of the first query."""
    end: int
    """One past the last."""
    first_key: int
    """Index among the keys of the span; more than 0 only where a window hides the ones before."""
    last_key: int
    """One past the last key."""
    siblings: tuple[int, ...]
    """Lengths of the segments in the block: the last B keys are theirs, and each sees its own."""
    mutual: tuple[tuple[int, int], ...]
    """Queries `[start, end)` of the block that all see each other."""
    window: int | None
    """Keys a query may look back on, itself included, if the block has keys beyond that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of queries with one set of keys, gathered once."""

    ranges: tuple[tuple[int, int], ...]
    """Packed positions `[start, end)` of the keys, ascending: what is above, then the span."""
    blocks: tuple[Block, ...]
    """The queries of the span, in order."""


@lru_cache(maxsize=32)
def starts(segments: Segments) -> tuple[int, ...]:
    """[S] Packed position of the first token of each segment."""
    out, total = [], 0
    for length in segments.lengths:
        out.append(total)
        total += length
    return tuple(out)


@lru_cache(maxsize=32)
def path_ranges(segments: Segments, segment: int) -> tuple[tuple[int, int], ...]:
    """Packed positions from the root to the end of a segment; () for the parent of a root."""
    path: list[tuple[int, int]] = []
    begins = starts(segments)
    while segment != -1:
        start = begins[segment]
        path.append((start, start + segments.lengths[segment]))
        segment = segments.parents[segment]
    return _joined(path[::-1])


def _joined(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges that touch become one."""
    out: list[tuple[int, int]] = []
    for start, end in ranges:
        if out and out[-1][1] == start:
            out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return tuple(out)


def mutual_within(segments: Segments, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """The stretches of `Segments.mutual` between two packed positions, counted from the first."""
    return tuple((a - start, b - start) for a, b in segments.mutual if start <= a and b <= end)


@lru_cache(maxsize=32)
def attention_plan(segments: Segments, window: Window | None, query_block: int) -> tuple[Span, ...]:
    """Spans that cover every query once.

    Short leaves of one parent form one span: a group's one-line answers, or rows of a few tokens,
    then cost one matrix product and not one each.

    Args:
        segments: the layout.
        window: of sliding-window attention, in tokens, or the chunk that a query sees; None looks
            at everything before.
        query_block: most queries in a block; only an image that is read as a whole may be longer.
    """
    begins = starts(segments)
    above = set(segments.parents)
    spans: list[Span] = []
    segment, number = 0, len(segments.lengths)
    while segment < number:
        last, total = segment + 1, segments.lengths[segment]
        while (
            window is None
            and last < number
            and segment not in above
            and last not in above
            and segments.parents[last] == segments.parents[segment]
            and total + segments.lengths[last] <= query_block
        ):
            total += segments.lengths[last]
            last += 1
        path = path_ranges(segments, segments.parents[segment])
        siblings, start = segments.lengths[segment:last], begins[segment]
        mutual = mutual_within(segments, start, start + sum(siblings))
        spans.append(_span(path, start, siblings, mutual, window, query_block))
        segment = last
    return tuple(spans)


def _span(
    path: tuple[tuple[int, int], ...],
    start: int,
    siblings: tuple[int, ...],
    mutual: tuple[tuple[int, int], ...],
    window: Window | None,
    query_block: int,
) -> Span:
    depth, length = sum(end - begin for begin, end in path), sum(siblings)
    blocks: list[Block] = []
    stretches = _query_stretches(length, query_block, mutual)
    if isinstance(window, Chunk):
        stretches = within_chunks(stretches, depth, window.size)
    for offset, end in stretches:
        first = 0 if window is None else max(0, first_seen(depth + offset, window))
        blocks.append(
            Block(
                begin=start + offset,
                end=start + end,
                first_key=first,
                last_key=depth + end,
                siblings=siblings if len(siblings) > 1 else (end - offset,),
                mutual=tuple((a - offset, b - offset) for a, b in mutual if offset <= a < end),
                # All queries of a block are in one chunk, and see it from the same key on.
                window=window if isinstance(window, int) and depth + end > window else None,
            )
        )
    return Span(ranges=_joined([*path, (start, start + length)]), blocks=tuple(blocks))


def _query_stretches(
    length: int, query_block: int, mutual: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Stretches `[begin, end)` of queries for blocks; none ends between queries of an image."""
    begin = 0
    while begin < length:
        end = min(begin + query_block, length)
        for first, last in mutual:
            if first < end < last:
                end = first if first > begin else last
        yield begin, end
        begin = end


def within_chunks(
    stretches: Iterator[tuple[int, int]], depth: int, size: int
) -> Iterator[tuple[int, int]]:
    """The same stretches of queries, ended where a chunk of their row ends."""
    for begin, end in stretches:
        while begin < end:
            stop = min(end, (depth + begin) // size * size + size - depth)
            yield begin, stop
            begin = stop


def future(
    siblings: tuple[int, ...], mutual: tuple[tuple[int, int], ...], dtype: torch.dtype
) -> Tensor:
    """[B, B] what is added to scores: 0 where a query sees the key, -inf where it does not."""
    return _but_mutual(siblings, mutual, dtype) if mutual else _causal(siblings, dtype)


@lru_cache(maxsize=256)
def _causal(siblings: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    total = sum(siblings)
    mask = torch.full((total, total), float("-inf"), dtype=dtype)
    start = 0
    for length in siblings:
        mask[start : start + length, start : start + length].triu_(1)
        start += length
    return mask


@lru_cache(maxsize=16)  # of a megabyte each, and seldom the same in two micro-batches
def _but_mutual(
    siblings: tuple[int, ...], mutual: tuple[tuple[int, int], ...], dtype: torch.dtype
) -> Tensor:
    mask = _causal(siblings, dtype).clone()
    for begin, end in mutual:
        mask[begin:end, begin:end] = 0.0
    return mask


@lru_cache(maxsize=64)
def outside_window(block: int, keys: int, window: int, dtype: torch.dtype) -> Tensor:
    """[B, keys] what is added to scores for a window, where the last B keys are the queries'."""
    behind = torch.full((block, keys), float("-inf"), dtype=dtype)
    # Query i is key `keys - block + i` and sees `window` keys up to it.
    return behind.tril_(keys - block - window)


def reach(segments: Segments) -> tuple[int, ...]:
    """[T] One past the last packed token that is below or in the segment of each token.

    A query q sees a key k exactly if `k <= q < reach[k]`: depth first, what continues a segment
    follows it without a gap. Beside that it sees the keys that are `mutual` with it.
    """
    ends = [
        start + length for start, length in zip(starts(segments), segments.lengths, strict=True)
    ]
    for segment in range(len(ends) - 1, -1, -1):
        parent = segments.parents[segment]
        if parent >= 0:
            ends[parent] = max(ends[parent], ends[segment])
    return tuple(
        end for end, length in zip(ends, segments.lengths, strict=True) for _ in range(length)
    )


def positions(segments: Segments) -> tuple[int, ...]:
    """[T] Position of each packed token in its rows."""
    after: list[int] = []
    out: list[int] = []
    for length, parent in zip(segments.lengths, segments.parents, strict=True):
        depth = after[parent] if parent >= 0 else 0
        out.extend(range(depth, depth + length))
        after.append(depth + length)
    return tuple(out)
