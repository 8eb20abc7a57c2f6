"""Repair tasks on real repositories: records, how they are made, and the environment.

Import strings for a run file: `agentrl_envs.swe:RepairTask`, and as dataset sources
`agentrl_envs.swe:swe_tasks`, `:swe_bench`, `:swe_gym`, `:swe_smith` and `:r2e_gym`; for Harbor task
directories `agentrl_envs.swe:HarborTask` and `:harbor_tasks`.
"""

from agentrl_envs.swe.env import RepairTask
from agentrl_envs.swe.grade import Reason, RepairGrader, RepairVerdict
from agentrl_envs.swe.harbor import HarborTask, harbor_tasks
from agentrl_envs.swe.readers import r2e_gym, swe_bench, swe_gym, swe_smith, swe_tasks
from agentrl_envs.swe.record import SweTask, read_tasks
from agentrl_envs.swe.trees import TreeStore
from agentrl_envs.swe.workspace import Workspace

__all__ = [
    "HarborTask",
    "Reason",
    "RepairGrader",
    "RepairTask",
    "RepairVerdict",
    "SweTask",
    "TreeStore",
    "Workspace",
    "harbor_tasks",
    "r2e_gym",
    "read_tasks",
    "swe_bench",
    "swe_gym",
    "swe_smith",
    "swe_tasks",
]
