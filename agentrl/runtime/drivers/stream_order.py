"""How a group names its task's place in the stream, so that the store says what was committed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentrl.data.tasks.cursor import Claim
from agentrl.errors import RunError
from agentrl.runtime.disk.stored_groups import stored_groups
from agentrl.types import TrajectoryGroup

if TYPE_CHECKING:
    from agentrl.data import TaskCursor
    from agentrl.runtime.records import Parts

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


def commit_stored(parts: Parts, *, after: int) -> TaskCursor:
    """The cursor of a run in which tasks do not end in their order, with all that is stored.

    Tasks of steps that are stored and newer than step `after` are not rolled out again. Where a
    rollback went back to one of these steps, the cursor that takes over there has committed all
    before it.

    Raises:
        RunError: see `stream_index`.
        DataError: one of them is committed already.
    """
    if parts.leaps:
        after = max(parts.leaps)
        parts.cursor = parts.leaps[after]
        parts.leaps.clear()
    for step in parts.store.steps("train"):
        if step > after:
            stored = stored_groups(parts.store, "train", step)
            parts.cursor.commit(stream_index(group) for group in stored)
    return parts.cursor
