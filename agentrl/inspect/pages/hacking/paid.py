"""Paid and wrong rollouts of a whole run, counted over all that are stored."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from agentrl.health import History
from agentrl.health.measures.paid_wrong import PaidWrong, count_paid_wrong, paid_wrong
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import number, rows_of
from agentrl.inspect.read.task_scores import last_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredRollout:
    """A rollout of the index of a run."""

    step: int
    task_id: str
    reward: float | None
    score: float | None


def paid_wrong_of_run(reader: RunReader, history: History) -> PaidWrong | None:
    """Counts over all stored rollouts of training; None where the score is the reward.

    What find counts by the same bounds is the same: it reads the same index.

    Args:
        reader: of the run.
        history: of the run, whose sample says without reading the rest if there is a count.
    """
    if paid_wrong(history.rollouts) is None:
        return None
    reader.rows.refresh()
    table = reader.rows.table().filter(pc.field("kind") == "train")
    columns = ["step", "task_id", "reward", "score"]
    return count_paid_wrong(
        [
            _StoredRollout(
                step=row["step"],
                task_id=row["task_id"],
                reward=number(row["reward"]),
                score=number(row["score"]),
            )
            for row in rows_of(last_rows(table).select(columns))
        ]
    )
