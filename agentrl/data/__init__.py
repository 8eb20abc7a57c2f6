"""Datasets in, trajectories out: `Task` lists, the cursor through them, and the store."""

from agentrl.data.store.columns import StoredTrajectory
from agentrl.data.store.token_store import TokenStore
from agentrl.data.store.trajectory_store import TrajectoryStore
from agentrl.data.tasks.cursor import TaskCursor
from agentrl.data.tasks.load import load_tasks

__all__ = ["StoredTrajectory", "TaskCursor", "TokenStore", "TrajectoryStore", "load_tasks"]
