"""Steps done and the position in the task stream: what a checkpoint stores beside the weights.

Where tasks do not end in their order, a group names its task's position in the stream, so that the
store says which tasks were committed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrl.data.tasks.cursor import Claim
from agentrl.errors import RunError
from agentrl.runtime.disk.stored_groups import stored_groups
from agentrl.types import TrajectoryGroup

if TYPE_CHECKING:
    from agentrl.data import TaskCursor, TrajectoryStore

_NAME = re.compile(r"^stream/(\d+)-")


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

    def finish(self, step: int) -> None:
        """Count a trained step; after one to which a rollback went back, other tasks follow."""
        self._cursor = self._leaps.pop(step, self._cursor)
        self._done, self._cursor_state = step, self._cursor.state()

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
            self._cursor = self._leaps[after]
            self._leaps.clear()
        for step in store.steps("train"):
            if step > after:
                stored = stored_groups(store, "train", step)
                self._cursor.commit(stream_index(group) for group in stored)
