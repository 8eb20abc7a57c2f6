"""The task cursor when tasks are claimed first and committed later, in any order."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.data import TaskCursor
from agentrl.errors import DataError
from agentrl.types import Task

TASKS = [Task(id=str(n), prompt="?") for n in range(7)]


def stream(n: int) -> list[str]:
    return [task.id for task in TaskCursor(TASKS, seed=0).take(n)]


@given(seed=st.integers(0, 2**32), kills=st.integers(0, 6))
def test_every_index_is_committed_once_whatever_dies(seed: int, kills: int) -> None:
    """Claims, commits out of order, gives back, dies and resumes from its state, at random.

    Fails if a restored cursor goes on behind the highest committed index without the gaps, or if
    it goes on at the frontier and hands out what was committed before its turn."""
    rng = random.Random(seed)
    cursor = TaskCursor(TASKS, seed=0)
    claimed: dict[int, str] = {}
    committed: dict[int, str] = {}
    for _ in range(kills + 1):
        for _ in range(rng.randrange(30)):
            action = rng.random()
            if action < 0.5:
                claim = cursor.claim()
                assert claim.index not in claimed
                assert claim.index not in committed
                claimed[claim.index] = claim.task.id
            elif claimed:
                index = rng.choice(sorted(claimed))
                task = claimed.pop(index)
                if action < 0.9:
                    cursor.commit([index])
                    committed[index] = task
                else:
                    cursor.release(index)
        cursor = TaskCursor.restore(TASKS, json.loads(json.dumps(cursor.state())))
        claimed = {}
    while cursor.epoch < 6:
        claim = cursor.claim()
        assert claim.index not in committed
        committed[claim.index] = claim.task.id
        cursor.commit([claim.index])
    assert [committed[index] for index in range(42)] == stream(42)
    for epoch in range(6):
        counts = Counter(committed[epoch * 7 + place] for place in range(7))
        assert set(counts.values()) == {1}


def test_gaps_come_first_and_in_order() -> None:
    cursor = TaskCursor(TASKS, seed=0)
    claims = [cursor.claim() for _ in range(5)]
    cursor.commit([1, 4])
    cursor.release(3)
    cursor.release(0)
    assert [cursor.claim().index for _ in range(3)] == [0, 3, 5]
    assert [claim.task.id for claim in claims] == stream(5)


def test_what_the_store_holds_is_committed_without_a_claim() -> None:
    """Fails if a commit beyond the last claim forgets what lies between."""
    cursor = TaskCursor(TASKS, seed=0)
    cursor.commit([3, 1])
    assert cursor.gaps == 2
    assert [cursor.claim().index for _ in range(3)] == [0, 2, 4]
    assert cursor.state()["ahead"] == [1, 3]


def test_a_task_that_would_be_trained_twice_is_refused() -> None:
    cursor = TaskCursor(TASKS, seed=0)
    cursor.take(2)
    cursor.commit([3])
    for index in (1, 3):
        with pytest.raises(DataError, match=f"task {index} of the stream would be trained twice"):
            cursor.commit([index])


def test_new_tasks_of_an_epoch_are_counted() -> None:
    cursor = TaskCursor(TASKS, seed=0)
    assert cursor.left_in_epoch == 7
    index = cursor.claim_new().index
    assert cursor.left_in_epoch == 6
    for _ in range(6):
        cursor.commit([cursor.claim_new().index])
    # All are claimed; with one given back the epoch is not over, and has no new task.
    cursor.release(index)
    assert (cursor.left_in_epoch, cursor.gaps) == (0, 1)
    cursor.commit([cursor.claim().index])
    assert (cursor.left_in_epoch, cursor.epoch) == (7, 1)


def test_a_state_of_an_older_run_has_nothing_ahead() -> None:
    cursor = TaskCursor(TASKS, seed=0)
    cursor.take(3)
    state = cursor.state()
    del state["ahead"]
    assert [task.id for task in TaskCursor.restore(TASKS, state).take(2)] == stream(5)[3:]
    with pytest.raises(DataError, match="'ahead' must be a list of integers"):
        TaskCursor.restore(TASKS, {**state, "ahead": ["x"]})
