"""The position of a run in its tasks: each once an epoch, in an order that can be recomputed.

The order of an epoch is a pure function of the seed, the epoch and the set of task ids, by sorting
hashes; no random generator's version takes part in it, so a resume years later continues the same
epoch. All epochs in order are an endless stream, and a task's position in it is its index.

With weights an epoch has as many slots as there are tasks, and a task the slots that its share of
the weights gives it, rounded up or down at random so that the average over epochs is exact
(systematic sampling). What is said below of a task then goes for a slot.

With a selection only some places of the stream take the tasks of that order, and the others what
the outcomes of earlier groups say (`selection`). A task that was drawn for a place stays there
until it is committed.

A driver that works on many steps at once claims an index, and commits it when its step is stored;
tasks may be committed in any order. Invariants: no index is committed twice; what was claimed and
not committed is claimed again before anything new, also by the process that resumes the run. The
state is four numbers, a fingerprint of the ids, and the indices committed before their turn; with
a selection also the outcomes, and the tasks of places that are claimed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.config.schema import SelectionSection
from agentrl.data.tasks.order import epoch_order, fingerprint, whole_weights
from agentrl.data.tasks.selection import TaskSelection
from agentrl.errors import DataError
from agentrl.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One task at one position of the stream."""

    index: int
    """Epoch times the number of tasks, plus the position in the epoch's order."""
    task: Task
    """The task at that position."""


class TaskCursor:
    """Gives out tasks, epoch after epoch.

    Example:
        >>> tasks = [Task(id=str(n), prompt="?") for n in range(3)]
        >>> cursor = TaskCursor(tasks, seed=0)
        >>> sorted(task.id for task in cursor.take(3))
        ['0', '1', '2']
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        weights: Mapping[str, float] | None = None,
        selection: SelectionSection | None = None,
    ) -> None:
        """A cursor before the first task of epoch 0.

        Args:
            tasks: all of them.
            seed: of the order.
            weights: how often each task comes, up to a common factor, by its id; None for once an
                epoch.
            selection: how outcomes choose tasks; None for the order of the epochs alone.

        Raises:
            DataError: no tasks, two with one id, weights that are not one positive number each, or
                a task without the metadata that the selection needs.
        """
        if not tasks:
            raise DataError("a task cursor needs at least one task, got none")
        self._tasks = {task.id: task for task in tasks}
        if len(self._tasks) != len(tasks):
            raise DataError(
                f"task ids must be unique, got {len(tasks)} tasks with {len(self._tasks)} ids"
            )
        self._weights = None if weights is None else whole_weights(self._tasks, weights)
        self._fingerprint = fingerprint(self._tasks, self._weights)
        self._seed = seed
        self._orders: dict[int, list[str]] = {}
        self._frontier = 0  # every index below it is committed
        self._ahead: set[int] = set()  # committed, above the frontier
        self._next = 0  # no index from here on was ever claimed
        self._gaps: list[int] = []  # heap: below _next, neither claimed nor committed
        self._selection = None if selection is None else TaskSelection(tasks, selection, seed=seed)
        self._claimed: dict[int, str] = {}  # with a selection: claimed once and not committed
        self._since: set[str] = set()  # with a selection: claimed since the last outcomes

    @property
    def epoch(self) -> int:
        """The epoch of the first task that is not committed, from 0."""
        return self._frontier // len(self._tasks)

    @property
    def position(self) -> int:
        """Tasks of this epoch before the first that is not committed."""
        return self._frontier % len(self._tasks)

    @property
    def taken(self) -> int:
        """Indices of the stream that were claimed, from 0; what was released is among them."""
        return self._next

    @property
    def gaps(self) -> int:
        """Tasks that were claimed and released, or lost with an earlier process."""
        return len(self._gaps)

    @property
    def left_in_epoch(self) -> int:
        """Tasks of the epoch being claimed that were never claimed; 0 while it has only gaps."""
        size = len(self._tasks)
        left = size - self._next % size
        return 0 if left == size and self._gaps else left

    def claim(self) -> Claim:
        """The first gap, or else the next task of the stream."""
        if self._gaps:
            return self._claim(heapq.heappop(self._gaps))
        return self.claim_new()

    def claim_new(self) -> Claim:
        """The next task that was never claimed."""
        self._next += 1
        return self._claim(self._next - 1)

    def release(self, index: int) -> None:
        """Give a claimed task back; it is the first to be claimed again."""
        heapq.heappush(self._gaps, index)

    def commit(self, indices: Iterable[int]) -> None:
        """These are stored. An index that this process did not claim came from the store.

        Raises:
            DataError: one of them is committed already.
        """
        for index in indices:
            if index < self._frontier or index in self._ahead:
                raise DataError(
                    f"task {index} of the stream would be trained twice: everything below "
                    f"{self._frontier} and {len(self._ahead)} later ones are committed"
                )
            if index >= self._next:
                for gap in range(self._next, index):
                    heapq.heappush(self._gaps, gap)
                self._next = index + 1
            elif index in self._gaps:
                self._gaps.remove(index)
                heapq.heapify(self._gaps)
            self._ahead.add(index)
            self._claimed.pop(index, None)
        while self._frontier in self._ahead:
            self._ahead.remove(self._frontier)
            self._frontier += 1

    def take(self, n: int) -> list[Task]:
        """Claim and commit `n` tasks. Across the border of two epochs a task may come twice."""
        if n < 0:
            raise ValueError(f"cannot take {n} tasks; n must not be negative")
        claims = [self.claim() for _ in range(n)]
        self.commit(claim.index for claim in claims)
        return [claim.task for claim in claims]

    @property
    def selects(self) -> bool:
        """Outcomes of earlier groups choose the tasks."""
        return self._selection is not None

    def is_uniform(self, index: int) -> bool:
        """The task at this index does not depend on outcomes."""
        return self._selection is None or self._selection.uniform_turn(index) is not None

    def observe(self, outcomes: Mapping[str, Sequence[bool]]) -> None:
        """Learn from the groups of a step: by task id, True for each whose scores differ."""
        if self._selection is not None:
            self._selection.observe(outcomes)
            self._since.clear()

    def _claim(self, index: int) -> Claim:
        if self._selection is None:
            return self._in_order(index, index)
        turn, busy = self._selection.uniform_turn(index), {*self._claimed.values(), *self._since}
        if turn is not None:
            claim = self._in_order(index, turn)
        else:
            name = self._claimed.get(index) or self._selection.draw(index, busy)
            claim = Claim(index=index, task=self._tasks[name])
        self._claimed[index] = claim.task.id
        self._since.add(claim.task.id)
        return claim

    def _in_order(self, index: int, turn: int) -> Claim:
        """The task at `turn` of the epochs' order, for a place in the stream."""
        epoch, position = divmod(turn, len(self._tasks))
        if epoch not in self._orders:
            oldest = min(self.epoch, epoch)
            self._orders = {e: order for e, order in self._orders.items() if e >= oldest}
            self._orders[epoch] = epoch_order(
                self._tasks, self._weights, seed=self._seed, epoch=epoch
            )
        return Claim(index=index, task=self._tasks[self._orders[epoch][position]])

    def state(self) -> dict[str, Any]:
        """Everything `restore` needs, JSON-serialisable; what is only claimed has no place in it.

        With a selection the tasks of claimed places are in it, so that they are claimed again.
        """
        state = {
            "seed": self._seed,
            "epoch": self.epoch,
            "position": self.position,
            "tasks": len(self._tasks),
            "fingerprint": self._fingerprint,
            "ahead": sorted(self._ahead),
        }
        if self._selection is not None:
            claimed = {str(index): self._claimed[index] for index in sorted(self._claimed)}
            state["selection"] = {**self._selection.state(), "claimed": claimed}
        return state

    @classmethod
    def restore(
        cls,
        tasks: Sequence[Task],
        state: Mapping[str, Any],
        *,
        weights: Mapping[str, float] | None = None,
        selection: SelectionSection | None = None,
    ) -> TaskCursor:
        """The cursor that `state` was taken from.

        Raises:
            DataError: `state` is not one, or the task ids, the weights or the selection are not
                those it was taken with.
        """
        cursor = cls(tasks, seed=_field(state, "seed"), weights=weights, selection=selection)
        epoch, position = _field(state, "epoch"), _field(state, "position")
        if state.get("fingerprint") != cursor._fingerprint:
            raise DataError(
                f"the tasks changed since this run was saved: it had {state.get('tasks')} tasks "
                f"with fingerprint {state.get('fingerprint')}, and the dataset now gives "
                f"{len(tasks)} with {cursor._fingerprint}. Going on would skip tasks or train "
                "them twice; put the dataset and its weights back as they were, or start a new run"
            )
        if epoch < 0 or not 0 <= position < len(tasks):
            raise DataError(
                f"task cursor at epoch {epoch}, position {position} of {len(tasks)} tasks: "
                "expected an epoch from 0 and a position below the number of tasks"
            )
        cursor._frontier = cursor._next = epoch * len(tasks) + position
        cursor.commit(_indices(state))
        cursor._restore_selection(state.get("selection"))
        return cursor

    def _restore_selection(self, state: Any) -> None:
        if self._selection is None and state is None:
            return
        if self._selection is None or not isinstance(state, dict):
            begun, now = ("without", "with") if state is None else ("with", "without")
            raise DataError(
                f"this run was begun {begun} dataset.selection and would go on {now} it; put the "
                "key back as it was, or start a new run"
            )
        self._selection.restore(state)
        self._claimed = _claimed(state, self._tasks)


def _field(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise DataError(
            f"task cursor state: {name!r} must be an integer, got {value!r}; expected what "
            "TaskCursor.state() returned"
        )
    return value


def _indices(state: Mapping[str, Any]) -> list[int]:
    value = state.get("ahead", [])
    if not isinstance(value, list) or not all(type(index) is int for index in value):
        raise DataError(
            f"task cursor state: 'ahead' must be a list of integers, got {value!r}; expected what "
            "TaskCursor.state() returned"
        )
    return value


def _claimed(state: Mapping[str, Any], tasks: Mapping[str, Task]) -> dict[int, str]:
    value = state.get("claimed", {})
    if not isinstance(value, dict) or not all(
        str(index).isdecimal() and isinstance(name, str) and name in tasks
        for index, name in value.items()
    ):
        raise DataError(
            "task cursor state: 'claimed' must be task ids of the dataset by index, got "
            f"{value!r}; expected what TaskCursor.state() returned"
        )
    return {int(index): name for index, name in value.items()}
