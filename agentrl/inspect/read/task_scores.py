"""Scores of tasks: what a rollout scored, and the mean of every task of an evaluation.

Invariant: every view takes the score of a rollout from `rollout_scores`, so that they agree on
which row of it counts and which endings are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agentrl.data import TrajectoryStore
from agentrl.data.store.bounds import open_parquet
from agentrl.data.store.step_files import stored_steps
from agentrl.errors import DataError
from agentrl.inspect.read.safe_json import rows_of
from agentrl.inspect.read.shelf import DAMAGE
from agentrl.machine.inside import within
from agentrl.types import TERMINATION_RULES

Measure = Literal["score", "reward"]
"""`score` is that of the environment, or the reward where it gives none."""
_COLUMNS = ["task_id", "rollout_id", "row_index", "termination", "reward", "score"]
_TRUSTED = pa.array([end.value for end, rule in TERMINATION_RULES.items() if rule.reward_trusted])


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
    parts: list[pa.Table] = []
    try:
        folder = TrajectoryStore(trajectories).path(step, kind).parent
        for path in stored_steps(folder.glob("*.parquet")).get(step, []):
            with open_parquet(within(trajectories, path), verify=False) as file:
                parts.append(file.read(columns=_COLUMNS, use_threads=False).select(_COLUMNS))
        if not parts:
            return {}
        rows = last_rows(pa.concat_tables(parts))
        tasks, of_task = numbered(rows.column("task_id"))
        means = mean_by(of_task, rollout_scores(rows), len(tasks))
    except (*DAMAGE, DataError):
        return {}
    return {task: float(mean) for task, mean in zip(tasks, means, strict=True) if mean == mean}


def last_rows(rows: pa.Table) -> pa.Table:
    """The last row of every rollout, in stored order.

    Args:
        rows: of one step, or with the column `shelf` of several.
    """
    _, last = rows_by_rollout(rows)
    return rows if len(last) == rows.num_rows else rows.take(last)


def rows_by_rollout(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """[rows] The number of the rollout of each row, and [rollouts] where its last row is.

    Args:
        rows: as for `last_rows`.
    """
    if not rows.num_rows:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    ids = _codes(rows.column("rollout_id"))[1]
    if "shelf" in rows.column_names:
        ids = ids + rows.column("shelf").to_numpy() * (int(ids.max()) + 1)
    order = np.lexsort((rows.column("row_index").to_numpy(), ids))
    is_last = np.append(ids[order][1:] != ids[order][:-1], True)
    last = order[is_last]
    # Numbered as they are stored, not as the sort put them.
    rank = np.empty(len(last), dtype=np.int64)
    rank[np.argsort(last)] = np.arange(len(last))
    of_row = np.empty(len(order), dtype=np.int64)
    of_row[order] = rank[np.cumsum(is_last) - is_last]
    return of_row, np.sort(last)


def rollout_scores(rows: pa.Table, measure: Measure = "score") -> np.ndarray:
    """[rows] Score or reward; NaN where it is no number, or the ending forbids trusting it."""
    values = rows.column("reward")
    if measure == "score":
        values = pc.coalesce(rows.column("score"), values)  # pyright: ignore[reportAttributeAccessIssue] - made at run time
    found = np.array(values.to_numpy(), dtype=np.float64)
    trusted = pc.is_in(rows.column("termination"), value_set=_TRUSTED)  # pyright: ignore[reportAttributeAccessIssue] - made at run time
    found[~(np.asarray(trusted.to_numpy(), dtype=bool) & np.isfinite(found))] = np.nan
    return found


def numbered(ids: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    """The distinct ids in order of appearance, and [rows] which of them each row has."""
    names, codes = _codes(ids)
    return [row["id"] for row in rows_of(pa.table({"id": names}))], codes


def mean_by(groups: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """[count] Mean of the values of each group; NaN where it has none.

    Args:
        groups: [values] number of the group, from 0.
        values: NaN is left out.
        count: of groups.
    """
    known = ~np.isnan(values)
    n = np.bincount(groups[known], minlength=count)
    sums = np.bincount(groups[known], weights=values[known], minlength=count)
    return np.where(n > 0, sums / np.maximum(n, 1), np.nan)


def _codes(ids: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
    if not len(ids):
        return pa.array([], pa.string()), np.empty(0, dtype=np.int64)
    encoded = pa.concat_arrays(ids.fill_null("").chunks).dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
