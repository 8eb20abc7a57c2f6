from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.data import TaskCursor
from agentrl.errors import DataError
from agentrl.types import Task


def tasks_of(*ids: str) -> list[Task]:
    return [Task(id=task_id, prompt="?") for task_id in ids]


def ids_of(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]


id_lists = st.lists(st.text(max_size=8), min_size=1, max_size=12, unique=True)
takes = st.lists(st.integers(min_value=0, max_value=30), max_size=8)


@given(ids=id_lists, seed=st.integers(0, 2**40), sizes=takes)
def test_every_task_comes_once_per_epoch_however_it_is_taken(
    ids: list[str], seed: int, sizes: list[int]
) -> None:
    # Fails if take() drops the rest of an epoch at its border, or starts the next one early.
    cursor = TaskCursor(tasks_of(*ids), seed=seed)
    taken = [task_id for size in sizes for task_id in ids_of(cursor.take(size))]
    assert len(taken) == sum(sizes)
    for start in range(0, len(taken), len(ids)):
        epoch = taken[start : start + len(ids)]
        assert max(Counter(epoch).values()) == 1
    assert cursor.epoch * len(ids) + cursor.position == len(taken)


@given(ids=id_lists, seed=st.integers(0, 100), before=takes, after=takes)
def test_a_restored_cursor_goes_on_where_the_saved_one_stood(
    ids: list[str], seed: int, before: list[int], after: list[int]
) -> None:
    cursor = TaskCursor(tasks_of(*ids), seed=seed)
    for size in before:
        cursor.take(size)
    state = json.loads(json.dumps(cursor.state()))
    shuffled = list(ids)
    random.Random(0).shuffle(shuffled)
    # The order of the file is no part of the order of the epoch.
    restored = TaskCursor.restore(tasks_of(*shuffled), state)
    for size in after:
        assert ids_of(restored.take(size)) == ids_of(cursor.take(size))
    assert restored.state() == cursor.state()


@given(ids=id_lists, other=id_lists)
def test_changed_tasks_are_refused(ids: list[str], other: list[str]) -> None:
    # Fails if the fingerprint is the number of tasks, or joins the ids without their lengths.
    state = TaskCursor(tasks_of(*ids), seed=0).state()
    if set(ids) == set(other):
        TaskCursor.restore(tasks_of(*other), state)
    else:
        with pytest.raises(DataError, match="the tasks changed since this run was saved"):
            TaskCursor.restore(tasks_of(*other), state)


def test_ids_that_join_to_the_same_text_have_different_fingerprints() -> None:
    state = TaskCursor(tasks_of("ab", "c"), seed=0).state()
    with pytest.raises(DataError, match="it had 2 tasks"):
        TaskCursor.restore(tasks_of("a", "bc"), state)


def test_the_order_depends_on_seed_and_epoch_and_nothing_else() -> None:
    tasks = tasks_of(*map(str, range(50)))
    first = TaskCursor(tasks, seed=1)
    assert ids_of(first.take(50)) == ids_of(TaskCursor(tasks, seed=1).take(50))
    assert ids_of(first.take(50)) != ids_of(TaskCursor(tasks, seed=1).take(50))
    assert ids_of(TaskCursor(tasks, seed=2).take(50)) != ids_of(TaskCursor(tasks, seed=1).take(50))
    # Runs are resumed by other processes, on other machines: the order itself is frozen, so that
    # a change to it is seen here and not in somebody's run.
    assert ids_of(TaskCursor(tasks_of(*"abcdefgh"), seed=0).take(8)) == FROZEN


FROZEN = list("hdgcaefb")


def test_the_order_is_the_same_in_another_process() -> None:
    # Fails if the order comes from hash(), which Python salts per process.
    code = (
        "from agentrl.data import TaskCursor; from agentrl.types import Task;"
        "print(''.join(t.id for t in TaskCursor([Task(id=c, prompt='?') for c in 'abcdefgh'],"
        " seed=0).take(8)))"
    )
    for salt in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        )
        assert list(done.stdout.strip()) == FROZEN


def test_what_cannot_be_a_cursor_is_refused() -> None:
    tasks = tasks_of("a", "b")
    with pytest.raises(DataError, match="at least one task"):
        TaskCursor([], seed=0)
    with pytest.raises(DataError, match="unique"):
        TaskCursor(tasks_of("a", "a"), seed=0)
    with pytest.raises(ValueError, match="cannot take -1"):
        TaskCursor(tasks, seed=0).take(-1)
    good = TaskCursor(tasks, seed=0).state()
    for broken, message in [
        ({}, "'seed' must be an integer, got None"),
        ({**good, "epoch": "1"}, "'epoch' must be an integer"),
        ({**good, "position": 2}, "position 2 of 2"),
        ({**good, "fingerprint": None}, "the tasks changed"),
    ]:
        with pytest.raises(DataError, match=message):
            TaskCursor.restore(tasks, broken)
