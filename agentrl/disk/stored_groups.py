"""Groups back from the trajectory store, as they were when they were written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.data.store.columns import unescape
from agentrl.types import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from agentrl.data import TrajectoryStore


def stored_groups(store: TrajectoryStore, kind: str, step: int) -> list[TrajectoryGroup]:
    """The groups stored for one step and kind, in their order; empty if nothing is stored."""
    rows: dict[str, list[Trajectory]] = {}
    if step in store.steps(kind):
        for stored in store.read(kind, step=step):
            rows.setdefault(stored.trajectory.group_id, []).append(stored.trajectory)
    return [
        TrajectoryGroup(group_id=group, task_id=members[0].task_id, trajectories=tuple(members))
        for group, members in rows.items()
    ]


def stored_names(store: TrajectoryStore, kind: str, step: int) -> set[str]:
    """Ids of these groups, without reading the groups."""

    return {unescape(name) for name in store.table(["group_id"], kind, step=step)[0].to_pylist()}
