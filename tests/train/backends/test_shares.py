"""Work over workers: all of it once, evenly, and the same on every rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.batch.halves import halves
from agentrl.batch.packing import pack_rows, unpack
from agentrl.batch.records import PackedBatch, Row, RowKey
from agentrl.errors import TrainError
from agentrl.train.backends.shares import least_loaded, share
from tests.train.tiny_llama import make_groups, make_step

SIZES = st.lists(st.integers(1, 5000), max_size=60)


def test_the_largest_goes_first_and_to_the_least_loaded():
    assert least_loaded([5, 4, 3, 3], 2) == [[0, 3], [1, 2]]
    assert least_loaded([2, 2], 3) == [[0], [1], []]
    assert least_loaded([], 2) == [[], []]


@given(SIZES, st.integers(1, 9))
def test_all_work_is_given_once_and_evenly(sizes, workers):
    """Fails for round-robin, which differs by far more than one piece, and if a piece gets lost."""
    given_out = least_loaded(sizes, workers)
    assert sorted(index for members in given_out for index in members) == list(range(len(sizes)))
    loads = [sum(sizes[index] for index in members) for members in given_out]
    assert max(loads) - min(loads) <= max(sizes, default=0)
    # Graham's bound for largest-first, against what no assignment can beat.
    floor = max(sum(sizes) / workers, max(sizes, default=0))
    assert max(loads) <= floor * (4 / 3) + max(sizes, default=0) / 3
    assert given_out == least_loaded(sizes, workers)


def test_a_single_large_piece_is_not_paired():
    # Round-robin in order of arrival would give worker 0 the load 120, not 100.
    assert least_loaded([100, 20, 20, 20, 20, 20], 2) == [[0], [1, 2, 3, 4, 5]]


def rows_of(part):
    return [key for micro in part.micro_batches for key in micro.rows]


def numbers_of(micros):
    """What each row brings into the loss, whichever micro-batch it is in."""
    found = {}
    for micro in micros:
        for row in unpack(micro):
            assert row.rows[0] not in found
            found[row.rows[0]] = [
                getattr(row, name).tolist()
                for name in (
                    "input_ids_T", "position_ids_T", "source_R", "target_R", "mask_R", "sampled_R",
                    "temperature_N", "rollout_log_probs_R", "advantages_R", "weights_R",
                )
            ]  # fmt: skip
    return found


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("micro_batch_tokens", [32, 10_000])
def test_shares_are_the_update_under_its_own_counts(world_size, lockstep, micro_batch_tokens):
    """Fails if a cut loses, doubles or mixes up rows, or a number of one changes."""
    (update,) = make_step(make_groups(), micro_batch_tokens=micro_batch_tokens).updates
    shares = [share(update, rank, world_size, lockstep=lockstep) for rank in range(world_size)]
    micros = [micro for part in shares for micro in part.micro_batches]
    assert numbers_of(micros) == numbers_of(update.micro_batches)
    assert {
        (part.global_tokens, part.global_sequences, part.horizon, part.epoch) for part in shares
    } == {(update.global_tokens, update.global_sequences, update.horizon, update.epoch)}
    # Enough rollouts are there, so nobody is idle, and no share is far from the others.
    assert all(rows_of(part) for part in shares)
    tokens = [sum(m.num_tokens for m in part.micro_batches if m.rows) for part in shares]
    assert max(tokens) - min(tokens) <= max(row.num_tokens for m in micros for row in unpack(m))
    if lockstep:
        assert len({len(part.micro_batches) for part in shares}) == 1


def test_more_ranks_than_rollouts_leave_some_with_padding_that_weighs_nothing():
    (update,) = make_step(make_groups(sizes=(2,))).updates
    shares = [share(update, rank, 5, lockstep=True) for rank in range(5)]
    assert sorted(len(rows_of(part)) for part in shares) == [0, 0, 0, 1, 1]
    assert [len(part.micro_batches) for part in shares] == [1] * 5
    padding = [part.micro_batches[0] for part in shares if not rows_of(part)]
    assert all(micro.num_tokens == 1 and len(micro.weights_R) == 0 for micro in padding)


def test_an_update_without_rows_needs_no_padding():
    update = PackedBatch(micro_batches=(), global_tokens=3, global_sequences=1, horizon=8)
    assert share(update, 1, 2, lockstep=True) == update


def test_rows_that_share_tokens_still_do_after_a_cut():
    """Fails if a part keeps only the tokens of its rows alone, or all those of the whole."""
    prompt = tuple(range(3, 23))
    rows = [
        row_of(f"g/{index}", ids=(*prompt, 30 + index, 40 + index), prompt=len(prompt))
        for index in range(4)
    ]
    (micro,) = pack_rows(rows, micro_batch_tokens=100, prefix_sharing=True)
    assert micro.num_tokens == len(prompt) + 4 * 2
    parts = halves(micro)
    assert [part.num_tokens for part in parts] == [len(prompt) + 2 * 2] * 2
    assert numbers_of(parts) == numbers_of([micro])
    assert halves(parts[0])[0].num_tokens == len(prompt) + 2


def test_rows_of_a_rollout_stay_together():
    """Fails for a loss of whole rollouts if the cut goes between any two rows."""
    rows = [row_of("a", index=0), row_of("b"), row_of("a", index=1), row_of("a", index=2)]
    (micro,) = pack_rows(rows, micro_batch_tokens=100)
    held = [{key.rollout_id for key in part.rows} for part in halves(micro)]
    assert held == [{"a"}, {"b"}]
    assert halves(halves(micro)[0]) is None


def row_of(rollout_id, *, index=0, ids=(5, 6, 7, 8), prompt=2):
    length = len(ids) - prompt
    return Row(
        key=RowKey(group_id="g", rollout_id=rollout_id, row_index=index),
        input_ids=np.array(ids),
        prompt_length=prompt,
        mask_R=np.ones(length, dtype=bool),
        sampled_R=np.ones(length, dtype=bool),
        rollout_log_probs_R=-np.ones(length),
        advantages_R=np.full(length, float(index)),
        weight=0.25,
        temperature=1.0,
    )


def test_there_has_to_be_a_worker():
    with pytest.raises(TrainError, match="0 workers"):
        least_loaded([1], 0)
    (update,) = make_step(make_groups()).updates
    with pytest.raises(TrainError, match="rank 2 is not one of 2"):
        share(update, 2, 2)
