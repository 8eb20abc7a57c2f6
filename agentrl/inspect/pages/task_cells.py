"""Cells of the table of tasks: the rollouts of a task in a range of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.inspect.read.safe_json import rows_of

Range = tuple[int, int]
"""First and last step, both included."""


def parse_steps(name: str, text: str) -> Range:
    """A range of steps as people write it.

    Args:
        name: of the parameter, for the message.
        text: `3`, or `1-5`.

    Raises:
        ValueError: it is no such range.

    Example:
        >>> parse_steps("before", "1-5"), parse_steps("before", "3")
        ((1, 5), (3, 3))
    """
    first, _, last = text.partition("-")
    ends = (first, last or first)
    if all(end.isascii() and end.isdigit() and len(end) <= 15 for end in ends):
        low, high = int(ends[0]), int(ends[1])
        if low <= high:
            return low, high
    raise ValueError(f"{name}: got {text[:50]!r}, expected a step or a range, as in 3 or 1-5")


class TaskCells:
    """Rollouts of tasks in ranges of steps, as cells of the table; places are read at once."""

    def __init__(
        self,
        index: pa.Table,
        tasks: int,
        of_task: np.ndarray,
        of_step: np.ndarray,
        scores: np.ndarray,
    ) -> None:
        self._index, self._of_step, self._scores = index, of_step, scores
        self._order = np.argsort(of_task, kind="stable")
        self._starts = np.searchsorted(of_task[self._order], np.arange(tasks + 1))

    def of_tasks(
        self, tasks: Sequence[int], ranges: Sequence[Range]
    ) -> list[list[dict[str, Any] | None]]:
        """[tasks][ranges] Mean, std and newest group of each; None where it was not tried."""
        newest: list[int] = []
        cells: list[dict[str, Any] | None] = []
        for task in tasks:
            rows = self._order[self._starts[task] : self._starts[task + 1]]
            steps, scores = self._of_step[rows].tolist(), self._scores[rows].tolist()
            for first, last in ranges:
                here = [i for i, step in enumerate(steps) if first <= step <= last]
                cells.append(mean_and_std([scores[i] for i in here]) if here else None)
                if here:
                    newest.append(rows[here[-1]])
        places = self._index.select(["step", "group_id"]).take(pa.array(newest, pa.int64()))
        place = iter(rows_of(places))
        whole = [cell if cell is None else cell | next(place) for cell in cells]
        return [whole[at : at + len(ranges)] for at in range(0, len(whole), len(ranges))]


def mean_and_std(values: Sequence[float]) -> dict[str, Any]:
    """Mean, std and number of those that can be trusted."""
    known = [value for value in values if value == value]
    if not known:
        return {"mean": None, "std": None, "n": 0}
    mean = math.fsum(known) / len(known)
    variance = math.fsum((value - mean) ** 2 for value in known) / len(known)
    return {"mean": mean, "std": math.sqrt(variance), "n": len(known)}
