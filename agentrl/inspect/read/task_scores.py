"""Scores of tasks at a step: what evaluations are compared by, and what the tasks view lists."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agentrl.inspect.read.stored_rows import StoredRows, chosen
from agentrl.types import TERMINATION_RULES

_TRUSTED = [ending.value for ending, rule in TERMINATION_RULES.items() if rule.reward_trusted]


def task_scores(
    rows: StoredRows, kind: str, steps: Collection[int] | None = None
) -> dict[int, dict[str, float]]:
    """Mean score of every task at every step.

    The score of a rollout is its `score`, or its reward where the environment gives none; rollouts
    that the infrastructure ended are left out, as they are in the score of an evaluation.

    Args:
        rows: of the run, refreshed.
        kind: `train` or `eval/NAME`.
        steps: those that are wanted; None takes all.
    """
    table = chosen(rows.table(), kind=kind)
    if steps is not None:
        table = table.filter(pc.field("step").isin(list(steps)))
    table = _last_rows(table)
    table = table.filter(pc.field("termination").isin(_TRUSTED))
    verdicts = pc.call_function("coalesce", [table["score"], table["reward"]])
    table = table.append_column("verdict", verdicts)
    means = table.group_by(["step", "task_id"]).aggregate([("verdict", "mean")])
    found: dict[int, dict[str, float]] = {}
    for step, task, mean in zip(
        means["step"].to_pylist(), means["task_id"].to_pylist(), means["verdict_mean"].to_pylist(),
        strict=True,
    ):  # fmt: skip
        if task is not None and mean is not None and mean == mean:
            found.setdefault(step, {})[task] = mean
    return found


def _last_rows(table: pa.Table) -> pa.Table:
    """The last row of every rollout, which is the one with its reward."""
    if not table.num_rows or not np.any(table["row_index"].to_numpy()):
        return table
    keys = ["shelf", "rollout_id"]
    last = table.group_by(keys).aggregate([("row_index", "max")])
    last = last.rename_columns([*keys, "row_index"])
    return table.join(last, keys=[*keys, "row_index"], join_type="inner")
