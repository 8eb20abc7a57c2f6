"""Where a run stands in its tasks: every task once per epoch, in an order that can be recomputed.

The order of an epoch is a pure function of the seed, the epoch and the set of task ids, by sorting
hashes; no random generator's version takes part in it, so a resume years later continues the same
epoch. The whole state is four numbers and a fingerprint of the ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl.errors import DataError
from agentrl.types import Task


class TaskCursor:
    """Hands out tasks, epoch after epoch.

    Example:
        >>> tasks = [Task(id=str(n), prompt="?") for n in range(3)]
        >>> cursor = TaskCursor(tasks, seed=0)
        >>> sorted(task.id for task in cursor.take(3))
        ['0', '1', '2']
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        """A cursor before the first task of epoch 0.

        Raises:
            DataError: no tasks, or two with one id.
        """
        if not tasks:
            raise DataError("a task cursor needs at least one task, got none")
        self._tasks = {task.id: task for task in tasks}
        if len(self._tasks) != len(tasks):
            raise DataError(
                f"task ids must be unique, got {len(tasks)} tasks with {len(self._tasks)} ids"
            )
        self._fingerprint = _fingerprint(self._tasks)
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._order = _order(self._tasks, seed, 0)

    @property
    def epoch(self) -> int:
        """The epoch the next task belongs to, from 0."""
        return self._epoch

    @property
    def position(self) -> int:
        """Tasks of this epoch that were handed out, in [0, number of tasks)."""
        return self._position

    def take(self, n: int) -> list[Task]:
        """The next `n` tasks. Across the border of two epochs a task may come twice."""
        if n < 0:
            raise ValueError(f"cannot take {n} tasks; n must not be negative")
        taken: list[Task] = []
        while len(taken) < n:
            ids = self._order[self._position : self._position + n - len(taken)]
            taken += [self._tasks[task_id] for task_id in ids]
            self._position += len(ids)
            if self._position == len(self._order):
                self._epoch += 1
                self._position = 0
                self._order = _order(self._tasks, self._seed, self._epoch)
        return taken

    def state(self) -> dict[str, Any]:
        """Everything `restore` needs, JSON-serialisable and of constant size."""
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "tasks": len(self._tasks),
            "fingerprint": self._fingerprint,
        }

    @classmethod
    def restore(cls, tasks: Sequence[Task], state: Mapping[str, Any]) -> TaskCursor:
        """The cursor that `state` was taken from.

        Raises:
            DataError: `state` is not one, or the task ids are not those it was taken with.
        """
        cursor = cls(tasks, seed=_field(state, "seed"))
        epoch, position = _field(state, "epoch"), _field(state, "position")
        if state.get("fingerprint") != cursor._fingerprint:
            raise DataError(
                f"the tasks changed since this run was saved: it had {state.get('tasks')} tasks "
                f"with fingerprint {state.get('fingerprint')}, and the dataset now gives "
                f"{len(tasks)} with {cursor._fingerprint}. Going on would skip tasks or train "
                "them twice; put the dataset back as it was, or start a new run"
            )
        if epoch < 0 or not 0 <= position < len(tasks):
            raise DataError(
                f"task cursor at epoch {epoch}, position {position} of {len(tasks)} tasks: "
                "expected an epoch from 0 and a position below the number of tasks"
            )
        cursor._epoch = epoch
        cursor._position = position
        cursor._order = _order(cursor._tasks, cursor._seed, epoch)
        return cursor


def _field(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise DataError(
            f"task cursor state: {name!r} must be an integer, got {value!r}; expected what "
            "TaskCursor.state() returned"
        )
    return value


def _bytes(task_id: str) -> bytes:
    return task_id.encode("utf-8", "surrogatepass")


def _order(ids: Iterable[str], seed: int, epoch: int) -> list[str]:
    salt = f"{seed}/{epoch}/".encode()
    return sorted(
        ids, key=lambda task_id: hashlib.blake2b(salt + _bytes(task_id), digest_size=16).digest()
    )


def _fingerprint(ids: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for task_id in sorted(ids):
        data = _bytes(task_id)
        # The length keeps ("ab", "c") apart from ("a", "bc").
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
