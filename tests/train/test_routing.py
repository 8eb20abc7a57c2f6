"""Work over workers: all of it once, evenly, and the same on every rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import make_groups, make_step

from agentrl.errors import TrainError
from agentrl.train.routing import assign, least_loaded, share

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


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_shares_are_the_update_cut_up_under_its_own_counts(world_size):
    (update,) = make_step(make_groups(), micro_batch_tokens=32).updates
    shares = [share(update, rank, world_size) for rank in range(world_size)]
    rows = [key for part in shares for micro in part.micro_batches for key in micro.rows]
    assert sorted(rows) == sorted(key for micro in update.micro_batches for key in micro.rows)
    assert {
        (part.global_tokens, part.global_sequences, part.horizon, part.epoch) for part in shares
    } == {(update.global_tokens, update.global_sequences, update.horizon, update.epoch)}
    assert [
        [update.micro_batches.index(micro) for micro in part.micro_batches] for part in shares
    ] == assign(update.micro_batches, world_size)


def test_there_has_to_be_a_worker():
    with pytest.raises(TrainError, match="0 workers"):
        least_loaded([1], 0)
    (update,) = make_step(make_groups()).updates
    with pytest.raises(TrainError, match="rank 2 is not one of 2"):
        share(update, 2, 2)
