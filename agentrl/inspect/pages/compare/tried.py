"""The rollouts of one side of a comparison, and what is read of some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import number, rows_of, shown

_PLACE = ["kind", "step", "row", "group_id", "rollout_id", "reward", "score", "termination"]


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
    causes: np.ndarray
    """[rollouts] Why each missed score, as `causes.failure_causes` gives them."""
    turns: np.ndarray
    """[rollouts] Turns of the policy."""

    def places(self, rollouts: Sequence[int]) -> list[dict[str, Any]]:
        """Places of some rollouts in the store, and how they ended, as JSON.

        Args:
            rollouts: numbers of them.
        """
        found = rows_of(self.rollouts.select(_PLACE).take(pa.array(rollouts, pa.int64())))
        return [
            {
                **row,
                "reward": number(row["reward"]),
                "score": number(row["score"]),
                "termination": shown(row["termination"], 100),
                "cause": str(self.causes[rollout]),
                "turns": int(self.turns[rollout]),
            }
            for rollout, row in zip(rollouts, found, strict=True)
        ]


def score_bounds(*scores: np.ndarray) -> tuple[float, float]:
    """Least and most that a score can be: 0 and 1, or the extremes where values leave these."""
    known = np.concatenate([of[~np.isnan(of)] for of in scores])
    if not len(known) or (known.min() >= 0 and known.max() <= 1):
        return 0.0, 1.0
    return float(known.min()), float(known.max())


def solved_from(*scores: np.ndarray) -> float:
    """The score from which on a rollout counts as solved: the middle between the bounds."""
    return sum(score_bounds(*scores)) / 2


def long_columns(
    reader: RunReader, places: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> list[dict[str, Any]]:
    """Long columns of some rollouts, with one reading a step."""
    of_step: dict[tuple[str, int], list[int]] = {}
    for place in places:
        of_step.setdefault((place["kind"], place["step"]), []).append(place["row"])
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for (kind, step), rows in of_step.items():
        order = sorted(set(rows))
        table = reader.rows.read(reader.rows.shelf(kind, step), order, columns)
        for row, of in zip(order, rows_of(table), strict=True):
            found[kind, step, row] = of
    return [found[place["kind"], place["step"], place["row"]] for place in places]
