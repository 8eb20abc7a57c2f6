"""Trees of common prefixes, and their cut into micro-batches, against what the rows say."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.batch.halves import within_images
from agentrl.batch.packing import pack_micro_batch, pack_rows, padding_micro_batch, unpack
from agentrl.batch.prefix import cheapest_runs, path_positions, prefix_tree, tree_tokens
from agentrl.batch.records import MicroBatch, Row, RowKey
from agentrl.errors import DataError
from agentrl.types import ImageSpan

# Two letters and short rows: long common prefixes, equal rows and rows inside rows are all likely.
ROWS = st.lists(st.lists(st.integers(3, 4), min_size=2, max_size=9), min_size=1, max_size=8)


def make_row(ids, index=0, *, rollout=None, seed=0):
    """A row with random numbers; its last tokens are the response."""
    rng = np.random.default_rng([seed, index])
    prompt = int(rng.integers(1, len(ids)))
    size = len(ids) - prompt
    return Row(
        key=RowKey(group_id="g", rollout_id=rollout or f"r{index}", row_index=index),
        input_ids=np.array(ids, dtype=np.int64),
        prompt_length=prompt,
        mask_R=rng.random(size) < 0.7,
        rollout_log_probs_R=-rng.random(size),
        sampled_R=rng.random(size) < 0.9,
        advantages_R=rng.normal(size=size),
        weight=float(rng.random()),
        temperature=float(rng.random()) + 0.5,
    )


def count_nodes(rows):
    """Tokens of the tree, from a trie of tuples."""
    return len({tuple(row[: end + 1]) for row in rows for end in range(len(row))})


@given(ROWS)
@settings(max_examples=150, deadline=None)
def test_a_tree_holds_every_row_and_no_token_twice(rows):
    """Fails if a row that ends inside another is lost, or if a branch hangs one token too low."""
    tree = prefix_tree([np.array(row) for row in rows])
    for row, segment in zip(rows, tree.segment_N.tolist(), strict=True):
        path = path_positions(tree.lengths_S, tree.parents_S, segment)
        assert tree.input_ids_T[path].tolist() == row
        assert tree.position_ids_T[path].tolist() == list(range(len(row)))
    assert len(tree.input_ids_T) == count_nodes(rows) == tree_tokens([np.array(r) for r in rows])
    assert (tree.lengths_S >= 1).all()


@given(ROWS, st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_a_shared_micro_batch_unpacks_into_its_rows(rows, seed):
    made = [make_row(ids, index, seed=seed) for index, ids in enumerate(rows)]
    micro = pack_micro_batch(made, prefix_sharing=True)
    for row, alone in zip(made, unpack(micro), strict=True):
        apart = pack_micro_batch([row])
        for name in MicroBatch.__slots__:
            assert np.array_equal(getattr(alone, name), getattr(apart, name)), name


@given(ROWS, st.integers(0, 1000), st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_micro_batch_unpacks_into_whole_rollouts(rows, seed, sharing):
    """Fails if a row of a rollout reads the tokens of its neighbour, or stands alone."""
    made = [make_row(ids, i, rollout=f"r{i % 3}", seed=seed) for i, ids in enumerate(rows)]
    together = [[row for row in made if row.key.rollout_id == f"r{n}"] for n in range(3)]
    micro = pack_micro_batch(made, prefix_sharing=sharing)
    for own, found in zip(filter(None, together), unpack(micro, whole_rollouts=True), strict=True):
        apart = pack_micro_batch(own)
        for name in MicroBatch.__slots__:
            assert np.array_equal(getattr(found, name), getattr(apart, name)), name


@given(ROWS, st.integers(9, 40), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_row_is_packed_once_within_the_budget(rows, budget, sharing, whole):
    """Fails if a cut forgets to repeat what is above it in its size."""
    made = [make_row(ids, i, rollout=f"r{i // 2}") for i, ids in enumerate(rows)]
    pairs = [
        [r for r in made if r.key.rollout_id == name] for name in {m.key.rollout_id for m in made}
    ]

    def size(rows):
        ids = [row.input_ids for row in rows]
        return tree_tokens(ids) if sharing else sum(map(len, ids))

    arguments = {"prefix_sharing": sharing, "whole_rollouts": whole, "micro_batch_tokens": budget}
    if whole and any(size(pair) > budget for pair in pairs):
        with pytest.raises(DataError, match="in 2 rows"):
            pack_rows(made, **arguments)
        return
    micros = pack_rows(made, **arguments)
    assert sorted(str(key) for m in micros for key in m.rows) == sorted(str(r.key) for r in made)
    assert all(micro.num_tokens <= budget for micro in micros)
    if whole:
        assert all(
            len({n for n, m in enumerate(micros) for key in m.rows if key.rollout_id == name}) == 1
            for name in {row.key.rollout_id for row in made}
        )


def test_a_group_reads_its_prompt_once_and_a_tree_above_the_budget_is_cut():
    prompt = list(range(100, 150))
    rows = [make_row([*prompt, *[1000 + i] * 10], i) for i in range(8)]
    assert [m.num_tokens for m in pack_rows(rows, micro_batch_tokens=500)] == [480]
    assert [m.num_tokens for m in pack_rows(rows, micro_batch_tokens=500, prefix_sharing=True)] == [
        130
    ]
    # 50 + 40 and again 50 + 40: the prompt is repeated once and no row is alone.
    halves = pack_rows(rows, micro_batch_tokens=90, prefix_sharing=True)
    assert [m.num_tokens for m in halves] == [90, 90]


def test_groups_are_cut_between_and_not_through():
    """Fails with next-fit: it fills the first micro-batch with a part of the second group."""
    rng = random.Random(0)
    rows = []
    for number in range(2):
        prompt = [100 + number] * 20
        rows += [make_row([*prompt, *rng.sample(range(500), 10)], 4 * number + i) for i in range(4)]
    micros = pack_rows(rows, micro_batch_tokens=100, prefix_sharing=True)
    assert [m.num_tokens for m in micros] == [60, 60]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=7),
    st.integers(9, 25),
)
@settings(max_examples=150, deadline=None)
def test_cuts_are_the_cheapest_there_are(items, budget):
    sizes = [size for size, _ in items]
    shared = [0] + [
        min(want, a, b) for (_, want), a, b in zip(items[1:], sizes[:-1], sizes[1:], strict=True)
    ]

    def cost(start, end):
        return sum(sizes[start:end]) - sum(shared[start + 1 : end])

    def best(start):
        if start == len(sizes):
            return 0
        ends = range(start + 1, len(sizes) + 1)
        return min(cost(start, e) + 64 + best(e) for e in ends if cost(start, e) <= budget)

    runs = cheapest_runs(sizes, shared, budget)
    assert [start for start, _ in runs] == [0, *[end for _, end in runs[:-1]]]
    assert runs[-1][1] == len(sizes)
    assert sum(cost(*run) + 64 for run in runs) == best(0)


def test_padding_has_a_token_and_nothing_else():
    padding = padding_micro_batch()
    assert (padding.num_tokens, padding.num_action_tokens, padding.rows) == (1, 0, ())
    assert unpack(padding) == ()


def test_segments_that_are_not_depth_first_are_refused():
    micro = pack_micro_batch([make_row([3, 4]), make_row([3, 5], 1)], prefix_sharing=True)
    fields = {name: getattr(micro, name) for name in MicroBatch.__slots__}
    for parents in ([-1, 2, 0], [-1, -1, 0], [0, 0, 0]):
        with pytest.raises(DataError, match="depth first"):
            MicroBatch(**{**fields, "parents_S": np.array(parents)})


def shown(ids, index, *digests):
    """A row of `make_row` whose images of two tokens begin at 1, 4, ..."""
    spans = [
        ImageSpan(digest=digest, start=1 + 3 * number, tokens=2, grid=(1, 1, 2))
        for number, digest in enumerate(digests)
    ]
    return replace(make_row(ids, index), images=tuple(spans))


PICTURED = [5, 9, 9, 6, 9, 9, 7, 8]


def test_rows_share_an_image_and_what_follows_only_if_it_is_the_same():
    """Fails if rows are told apart by ids alone, or a segment ends inside an image."""
    rows = [shown(PICTURED, 0, "a", "b"), shown(PICTURED, 1, "a", "c"), shown(PICTURED, 2, "c")]
    micro = pack_micro_batch(rows, prefix_sharing=True)
    assert sorted(image.span.digest for image in micro.images) == ["a", "b", "c", "c"]
    # [5] alone is common to all; the first image and what follows it to two.
    assert sorted(micro.lengths_S.tolist()) == [1, 3, 4, 4, 7]
    for alone, row in zip(unpack(micro), rows, strict=True):
        assert alone.input_ids_T.tolist() == PICTURED
        assert tuple(image.span for image in alone.images) == row.images


def test_a_micro_batch_has_images_of_so_many_features():
    """Fails if a shared image counts twice, or a rollout is lost or split."""
    rows = [
        shown(PICTURED, index, *digests)
        for index, digests in enumerate([("a", "b"), ("a", "c"), ("d",), (), ("e", "f")])
    ]
    whole = pack_micro_batch(rows, prefix_sharing=True)
    assert within_images([whole], None) == (whole,)
    parts = within_images([whole], 6)
    assert [[key.row_index for key in part.rows] for part in parts] == [[0, 1], [2, 3, 4]]
    assert [sorted({i.span.digest for i in part.images}) for part in parts] == [
        ["a", "b", "c"],
        ["d", "e", "f"],
    ]
    alone = within_images([whole], 1)
    assert [len(part.rows) for part in alone] == [1, 1, 1, 1, 1]
