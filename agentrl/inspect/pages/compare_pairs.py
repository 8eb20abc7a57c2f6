"""Pairs of rollouts of one task, one of either set: failed before and solved after, or lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.inspect.read.safe_json import number, rows_of, shown

_MOST_PAIRS = 20
"""Pairs listed of either direction."""
_HALF = 0.5
"""A score from here on is solved; where values leave 0 to 1, the middle between the extremes is."""
_PLACE = ["kind", "step", "group_id", "rollout_id", "reward", "score", "termination"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Rollouts of one set with their tasks and scores."""

    rollouts: pa.Table
    """Their last rows, as in the index."""
    tasks: Sequence[str]
    """Distinct ids."""
    of_task: np.ndarray
    """[rollouts] Number of the task of each."""
    scores: np.ndarray
    """[rollouts] Score; NaN where it cannot be trusted."""
    failed_calls: np.ndarray
    """[rollouts] Tool calls that could not be read or gave an error."""


def sample_pairs(before: Tried, after: Tried) -> dict[str, Any]:
    """For each direction the tasks that moved most, with one rollout of either set.

    The rollouts are the worst and the best of the task, so that the pair shows the difference.
    """
    limit = _solved_from(before.scores, after.scores)
    ours, theirs = _ends_by_task(before), _ends_by_task(after)
    common = [task for task in ours if task in theirs]
    solved = [t for t in common if ours[t].mean < theirs[t].mean
              and ours[t].low < limit <= theirs[t].high]  # fmt: skip
    lost = [t for t in common if ours[t].mean > theirs[t].mean
            and theirs[t].low < limit <= ours[t].high]  # fmt: skip

    def entry(task: str, worst_first: bool) -> dict[str, Any]:
        a, b = ours[task], theirs[task]
        return {
            "task_id": task,
            "before": a.mean,
            "after": b.mean,
            "a": _place(before, a.worst if worst_first else a.best),
            "b": _place(after, b.best if worst_first else b.worst),
        }

    def most(tasks: Sequence[str], sign: int) -> list[str]:
        return sorted(tasks, key=lambda t: (sign * (ours[t].mean - theirs[t].mean), t))[
            :_MOST_PAIRS
        ]

    return {
        "common_tasks": len(common),
        "solved_from": limit,
        "solved": [entry(task, True) for task in most(solved, 1)],
        "solved_count": len(solved),
        "lost": [entry(task, False) for task in most(lost, -1)],
        "lost_count": len(lost),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """Worst and best rollout of one task."""

    mean: float
    low: float
    high: float
    worst: int
    best: int


def _ends_by_task(tried: Tried) -> dict[str, _Ends]:
    known = np.flatnonzero(~np.isnan(tried.scores))
    order = known[np.lexsort((tried.scores[known], tried.of_task[known]))]
    starts = np.flatnonzero(np.diff(tried.of_task[order], prepend=-1))
    found: dict[str, _Ends] = {}
    for members in np.split(order, starts[1:]) if len(order) else ():
        scores = tried.scores[members]
        found[tried.tasks[int(tried.of_task[members[0]])]] = _Ends(
            mean=float(scores.mean()),
            low=float(scores[0]),
            high=float(scores[-1]),
            worst=int(members[0]),
            best=int(members[-1]),
        )
    return found


def _solved_from(*scores: np.ndarray) -> float:
    known = np.concatenate([of[~np.isnan(of)] for of in scores])
    if not len(known) or (known.min() >= 0 and known.max() <= 1):
        return _HALF
    return float(known.min() + known.max()) / 2


def _place(tried: Tried, rollout: int) -> dict[str, Any]:
    row = rows_of(tried.rollouts.slice(rollout, 1).select(_PLACE))[0]
    return {
        **row,
        "reward": number(row["reward"]),
        "score": number(row["score"]),
        "termination": shown(row["termination"], 100),
        "failed_calls": int(tried.failed_calls[rollout]),
    }
