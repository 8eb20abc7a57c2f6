"""How a group names its task's place in the stream, so that the store says what was committed."""

from __future__ import annotations

import re

from agentrl.data import TaskCursor, TrajectoryStore
from agentrl.data.cursor import Claim
from agentrl.errors import RunError
from agentrl.runtime.stored import stored_groups
from agentrl.types import TrajectoryGroup

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


def commit_stored(store: TrajectoryStore, cursor: TaskCursor, *, after: int) -> None:
    """Tasks of steps that are stored and newer than step `after` are not rolled out again.

    Raises:
        RunError: see `stream_index`.
        DataError: one of them is committed already.
    """
    for step in store.steps("train"):
        if step > after:
            cursor.commit(stream_index(group) for group in stored_groups(store, "train", step))
