"""Answers that were paid although wrong by the score, counted over all stored rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agentrl.health.measures.paid_wrong import PaidLimits, PaidWrong, count_paid_wrong
from agentrl.health.records import LARGEST
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import number, rows_of, shown
from agentrl.inspect.read.task_scores import last_rows, numbered


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidRun:
    """Wrong answers that a run has paid for."""

    counts: PaidWrong | None
    """None where the score is the reward, or one of them says nothing."""
    example: dict[str, Any] | None
    """The rollout to open first; None where none says more than its reward does."""


def paid_of_run(reader: RunReader) -> PaidRun:
    """Counts over all stored rollouts of training, worked out once while no file is added.

    What find counts by the same bounds is the same: it reads the same index.

    Args:
        reader: of the run.
    """
    reader.rows.refresh()
    return reader.rows.of_all("paid", _paid)


def paid_limits_of(reader: RunReader, kind: str) -> PaidLimits | None:
    """The bounds for rollouts of a kind; None where none of them can be paid and wrong.

    Args:
        reader: of the run.
        kind: only those of `train` are paid.
    """
    counts = paid_of_run(reader).counts if kind == "train" else None
    return counts.limits if counts else None


def rewards_and_scores(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """[rows] Reward and score as they are stored; NaN where there is none.

    Args:
        rows: of the index.
    """
    columns = (rows.column(name).to_numpy() for name in ("reward", "score"))
    reward, score = (np.array(column, dtype=np.float64) for column in columns)
    return reward, score


def _paid(table: pa.Table) -> PaidRun:
    rows = last_rows(table.filter(pc.field("kind") == "train"))
    rewards, scores = rewards_and_scores(rows)
    counts = count_paid_wrong(
        rows.column("step").to_numpy(), numbered(rows.column("task_id"))[1], rewards, scores
    )
    with np.errstate(invalid="ignore"):
        known = np.abs(rewards) <= LARGEST
    # The best paid one is no example where its score says the same.
    if not (known & (rewards != scores)).any():
        return PaidRun(counts=counts, example=None)
    wrong = np.zeros(len(rewards), dtype=bool)
    if counts is not None:
        wrong = known & counts.limits.all_wrong(rewards, scores)
    steps = rows.column("step").to_numpy()
    candidates = wrong if wrong.any() else known & (steps == steps[known].max())
    best = max(np.flatnonzero(candidates).tolist(), key=lambda row: (rewards[row], steps[row]))
    chosen = rows_of(rows.slice(best, 1))[0]
    example = {
        "kind": "train",
        "step": chosen["step"],
        "rollout_id": shown(chosen["rollout_id"]),
        "task_id": shown(chosen["task_id"], 100),
        "reward": number(chosen["reward"]),
        "score": number(chosen["score"]),
        "wrong": bool(wrong[best]),
    }
    return PaidRun(counts=counts, example=example)
