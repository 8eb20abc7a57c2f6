"""Small Python functions as a multi-turn environment.

Import strings for a run file: `agentrl_envs.code:CodeTask`, `agentrl_envs.code:make_tasks`,
`agentrl_envs.code:humaneval_tasks`.
"""

from agentrl_envs.code.env import CodeTask, problem_of
from agentrl_envs.code.families import FunctionFamily, Variant
from agentrl_envs.code.humaneval import humaneval_tasks
from agentrl_envs.code.runner import Case, Problem, Report, run_solution
from agentrl_envs.code.tasks import FAMILIES, HELD_OUT, TRAIN, make_tasks

__all__ = [
    "FAMILIES",
    "HELD_OUT",
    "TRAIN",
    "Case",
    "CodeTask",
    "FunctionFamily",
    "Problem",
    "Report",
    "Variant",
    "humaneval_tasks",
    "make_tasks",
    "problem_of",
    "run_solution",
]
