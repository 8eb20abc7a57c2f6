"""Steps done and the position in the task stream: what a checkpoint stores beside the weights.

Where tasks do not end in their order, a group names its task's position in the stream, so that the
store says which tasks were committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl.data.tasks.cursor import Claim
from agentrl.disk.stored_groups import stored_groups
from agentrl.errors import RunError
from agentrl.metrics import MetricBag
from agentrl.runtime.stages import GroupReport
from agentrl.types import TrajectoryGroup

if TYPE_CHECKING:
    from agentrl.data import TaskCursor, TrajectoryStore

_NAME = re.compile(r"^stream/(\d+)-")
_EQUAL = 1e-8
"""Scores that differ by less are equal, as in `frac_reward_zero_std`."""


def group_name(claim: Claim) -> str:
    """The group id of a claimed task; unique in the run."""
    return f"stream/{claim.index:08d}-{claim.task.id}"


def stream_index(group: TrajectoryGroup) -> int:
    """The index in a group id.

    Raises:
        RunError: the group was made by a schedule that works through the tasks in their order.
    """
    found = _NAME.match(group.group_id)
    if found is None:
        raise RunError(
            f"--resume: the stored group {group.group_id!r} was made with the default `schedule`, "
            "and another schedule cannot take over between two checkpoints; resume with the "
            "schedule the run was begun with"
        )
    return int(found[1])


def trusted_scores(group: GroupReport) -> list[float]:
    """Scores of the rollouts that siblings are compared with, rewards where there is no score."""
    return [r.verdict for r in group.rollouts if r.rule.in_baseline and r.verdict is not None]


def outcomes_of(groups: Iterable[GroupReport]) -> dict[str, list[bool]]:
    """By task id, True for each group whose scores differ and that can teach something.

    Groups with fewer than two trusted rollouts say nothing of their task.
    """
    found: dict[str, list[bool]] = {}
    for group in groups:
        scores = trusted_scores(group)
        if len(scores) > 1:
            found.setdefault(group.task_id, []).append(max(scores) - min(scores) > _EQUAL)
    return found


_PLACE = ("epoch", "position", "ahead")
"""Parts of `TaskCursor.state()` that name the committed tasks."""


class RunPosition:
    """Steps done, the cursor that the next step takes tasks from, and its state for a checkpoint.

    Invariant: `cursor_state` is that after step `done`, also while tasks of the next step are
    taken, so a checkpoint never skips the tasks of a step in flight.
    """

    def __init__(self, cursor: TaskCursor, leaps: Mapping[int, TaskCursor], *, done: int) -> None:
        """Start where the last checkpoint stands.

        Args:
            cursor: of the training tasks, standing after the last task of `done` steps.
            leaps: cursors that take over after later steps, which rollbacks went back to; each is
                used once.
            done: steps whose weights are loaded.
        """
        self._cursor, self._leaps, self._done = cursor, dict(leaps), done
        self._cursor_state = cursor.state()
        self._learned = done  # outcomes of the steps until this one are in the cursor
        self._places_after: dict[int, dict[str, Any]] = {}

    @property
    def done(self) -> int:
        """Count of training steps done."""
        return self._done

    @property
    def cursor(self) -> TaskCursor:
        """Source of the next training tasks."""
        return self._cursor

    @property
    def cursor_state(self) -> dict[str, Any]:
        """`TaskCursor.state()` after the last task of step `done`."""
        return self._cursor_state

    def observe(self, step: int, groups: Sequence[GroupReport], bag: MetricBag) -> None:
        """Choose later tasks by the outcomes of a trained step, where `dataset.selection` asks.

        Args:
            step: from 1; called once for each, before `finish`.
            groups: all of the step.
            bag: takes the scores of the tasks that were not chosen: with a selection those of all
                tasks are no estimate for the dataset.
        """
        cursor = self._cursor
        if not cursor.selects:
            return
        for index, group in zip(self._places(groups), groups, strict=True):
            scores = trusted_scores(group)
            bag.mean("selection/chosen_share", not cursor.is_uniform(index))
            if cursor.is_uniform(index) and scores:
                bag.mean("selection/dataset_score", sum(scores), count=len(scores))
                is_flat = max(scores) - min(scores) <= _EQUAL
                bag.mean("selection/dataset_frac_flat", is_flat * len(scores), count=len(scores))
        if step > self._learned:
            cursor.observe(outcomes_of(groups))

    def _places(self, groups: Sequence[GroupReport]) -> Sequence[int]:
        """Position of each group's task in the stream: by its name, or else by the order."""
        found = [_NAME.match(group.group_id) for group in groups]
        if any(item is None for item in found):
            first = self._cursor.taken - len(groups)
            return range(first, first + len(groups))
        return [int(item[1]) for item in found if item is not None]

    def finish(self, step: int) -> None:
        """Count a trained step; after one to which a rollback went back, other tasks follow."""
        self._cursor = self._leaps.pop(step, self._cursor)
        place = self._places_after.pop(step, {})  # of a stored one others are committed, too
        self._done, self._cursor_state = step, {**self._cursor.state(), **place}

    def commit_stored(self, store: TrajectoryStore) -> None:
        """Commit the tasks of all stored steps, for a run whose tasks do not end in their order.

        Tasks of steps that are stored and newer than `done` are not rolled out again. Where a
        rollback went back to one of these steps, the cursor that takes over there has committed all
        before it.

        Raises:
            RunError: see `stream_index`.
            DataError: one of them is committed already.
        """
        after = self._done
        if self._leaps:
            after = max(self._leaps)
            self._learned = after  # the cursor that takes over knows the steps before it
            self._cursor = self._leaps[after]
            self._leaps.clear()
        for step in store.steps("train"):
            if step > after:
                stored = stored_groups(store, "train", step)
                self._cursor.commit(stream_index(group) for group in stored)
                known = self._cursor.state()
                self._places_after[step] = {name: known[name] for name in _PLACE}
