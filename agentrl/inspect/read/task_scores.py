"""Scores of the tasks of one evaluation, by which two evaluations are compared."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq

from agentrl.data import TrajectoryStore
from agentrl.data.store.step_files import stored_steps
from agentrl.errors import DataError
from agentrl.inspect.read.shelf import DAMAGE
from agentrl.types import TERMINATION_RULES

_COLUMNS = ["task_id", "rollout_id", "row_index", "termination", "reward", "score"]
_TRUSTED = {ending.value for ending, rule in TERMINATION_RULES.items() if rule.reward_trusted}


def task_scores(trajectories: Path, kind: str, step: int) -> dict[str, float]:
    """Mean score of every task, read from the files of this step alone.

    The score of a rollout is its `score`, or its reward where the environment gives none; rollouts
    that the infrastructure ended are left out, as they are in the score of an evaluation. Empty
    where the step is not stored, or one of its files is damaged; the view of the step says so.

    Args:
        trajectories: folder of the store.
        kind: as `eval/NAME`.
        step: after which the evaluation was made.
    """
    last: dict[str, dict[str, Any]] = {}
    try:
        folder = TrajectoryStore(trajectories).path(step, kind).parent
        for path in stored_steps(folder.glob("*.parquet")).get(step, []):
            with pq.ParquetFile(path) as file:
                rows = file.read(columns=_COLUMNS, use_threads=False).to_pylist()
            for row in rows:
                known = last.get(row["rollout_id"])
                if known is None or row["row_index"] > known["row_index"]:
                    last[row["rollout_id"]] = row
    except (*DAMAGE, DataError):
        return {}
    scores: dict[str, list[float]] = {}
    for row in last.values():
        score = row["reward"] if row["score"] is None else row["score"]
        if row["termination"] in _TRUSTED and isinstance(score, float) and score == score:
            scores.setdefault(str(row["task_id"]), []).append(score)
    return {task: fmean(values) for task, values in scores.items()}
