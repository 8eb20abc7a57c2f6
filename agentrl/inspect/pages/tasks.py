"""The table of tasks: the score of every task before and after, and what that changed.

Two ranges of steps of one kind are compared task by task, so the difficulty of the tasks is not in
the interval of the change. One pass over the index in memory; no file is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.data.run.task_labels import Labels
from agentrl.errors import RunError, choices
from agentrl.inspect.pages.compare.by_label import change_by_label
from agentrl.inspect.pages.compare.tried import solved_from
from agentrl.inspect.pages.scores import first_and_last, paired_change
from agentrl.inspect.pages.task_cells import Range, TaskCells
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import number
from agentrl.inspect.read.task_scores import (
    Measure,
    last_rows,
    mean_by,
    numbered,
    rollout_scores,
)
from agentrl.types.solved import ROUNDING, SOLVED

SORTS = ("gain", "loss", "task", "before", "after")
"""Orders of the table of tasks."""
BEFORE = ("zero", "between", "one")
"""Scores before by which tasks are chosen: never solved, sometimes, always."""
MEASURES: tuple[Measure, ...] = ("score", "reward")
"""Numbers that may be compared."""
_MOST_COLUMNS = 12
"""Ranges of steps between before and after that are shown of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQuestion:
    """Which scores of which tasks to compare.

    Example:
        >>> TaskQuestion(kind="eval/held_out", text="reverse").sort
        'gain'
    """

    kind: str | None = None
    """`train` or `eval/NAME`; None takes the evaluation of the run's score, or `train`."""
    before: Range | None = None
    """Steps to start from; None takes the first evaluation, or the first third of training."""
    after: Range | None = None
    """Steps to compare with; None takes the last evaluation, or the last third of training."""
    measure: str = "score"
    """One of `MEASURES`."""
    text: str = ""
    """Only tasks whose id contains it, in upper or lower case."""
    was: str | None = None
    """Only tasks whose score before was so, one of `BEFORE`."""
    labels: Mapping[str, str] | None = None
    """Only tasks whose labels have these values."""
    sort: str = "gain"
    """One of `SORTS`."""
    limit: int = 100
    """Most tasks listed."""
    offset: int = 0
    """Tasks left out before the first that is listed."""

    def __post_init__(self) -> None:
        """Refuse a choice that does not exist.

        Raises:
            ValueError: names the valid ones.
        """
        for name, value, valid in (
            ("sort", self.sort, SORTS),
            ("measure", self.measure, MEASURES),
            ("was", self.was, BEFORE),
        ):
            if value is not None and value not in valid:
                raise ValueError(f"{name}: {choices(value, valid)}")


def tasks_answer(reader: RunReader, question: TaskQuestion) -> dict[str, Any]:
    """Tasks with their score before and after, the change of each, and of all of them.

    Raises:
        RunError: the run has no rollouts, or not of this kind.
    """
    rows = reader.rows
    rows.refresh()
    kind = question.kind or usual_kind(reader)
    steps = rows.steps_of(kind)
    usual = usual_ranges(kind, steps)
    before, after = question.before or usual[0], question.after or usual[1]
    index = last_rows(pa.concat_tables(shelf.index for shelf in rows.shelves(kind)))
    names, of_task = numbered(index.column("task_id"))
    of_step = index.column("step").to_numpy()
    scores = rollout_scores(index, "reward" if question.measure == "reward" else "score")
    columns = step_columns(steps)
    means = [
        mean_by(of_task[here], scores[here], len(names))
        for here in (_inside(of_step, steps) for steps in (before, after))
    ]
    labels = reader.task_labels.of_kind(kind)
    kept = _kept(names, means[0], labels, question)
    order = _sorted(kept, names, means, question.sort)
    page = order[question.offset : question.offset + question.limit]
    cells = TaskCells(index, len(names), of_task, of_step, scores)
    of_page = cells.of_tasks(page, [before, after, *columns])
    limit = solved_from(scores)
    return {
        "kind": kind,
        "kinds": {name: rows.steps(name) for name in rows.kinds()},
        "measure": question.measure,
        "before": before,
        "after": after,
        "columns": columns,
        "once": _once(reader),
        "total": len(order),
        "all": len(names),
        "change": _change([names[i] for i in kept], *([mean[i] for i in kept] for mean in means)),
        "labels": _labels_of_all(names, labels),
        "by_label": change_by_label(names, means, labels),
        "tasks": [
            {
                "task_id": names[task],
                "labels": labels.get(names[task], {}),
                "change": number(float(means[1][task] - means[0][task])),
                "before": first,
                "after": last,
                "over": over,
                "solved": _solved(task, of_task, of_step, scores, limit),
            }
            for task, (first, last, *over) in zip(page, of_page, strict=True)
        ],
        "notes": rows.notes,
    }


def _solved(
    task: int, of_task: np.ndarray, of_step: np.ndarray, scores: np.ndarray, limit: float
) -> dict[str, int | None]:
    """In how many of its steps a rollout of a task solved it, and in which one first."""
    here = of_task == task
    steps, of_rollout = of_step[here], scores[here]
    won = np.unique(steps[of_rollout >= limit])
    return {
        "steps": len(np.unique(steps[~np.isnan(of_rollout)])),
        "solved": len(won),
        "first": int(won[0]) if len(won) else None,
    }


def _once(reader: RunReader) -> str:
    """A sentence if no task of training came back in a later step; empty if one did."""
    rows = reader.rows
    shelves = list(rows.shelves("train"))
    if len(shelves) < 2:
        return ""
    index = pa.concat_tables(shelf.index for shelf in shelves)
    names, of_task = numbered(index.column("task_id"))
    steps = index.column("step").to_numpy()
    if len(np.unique(of_task * (int(steps.max()) + 1) + steps)) > len(names):
        return ""
    told = "Each task of training was tried in one step"
    again = [
        f"{kind.removeprefix('eval/')} (steps {', '.join(map(str, at))})"
        if len(at) < 6
        else f"{kind.removeprefix('eval/')} (steps {at[0]} to {at[-1]})"
        for kind in rows.kinds()
        if kind != "train" and len(at := rows.steps(kind)) > 1
    ]
    return f"{told}; only evaluations repeat tasks: {', '.join(again)}." if again else f"{told}."


def usual_ranges(kind: str, steps: Sequence[int]) -> tuple[Range, Range]:
    """The steps that are compared unless others are named.

    A task comes back in training only after many steps, so there it is a third at either end.

    Example:
        >>> usual_ranges("train", [1, 2, 3, 4, 5, 6])
        ((1, 2), (5, 6))
        >>> usual_ranges("eval/held_out", [0, 5, 10])
        ((0, 0), (10, 10))
    """
    if kind != "train":
        return (steps[0], steps[0]), (steps[-1], steps[-1])
    part = max(1, len(steps) // 3)
    return (steps[0], steps[part - 1]), (steps[-part], steps[-1])


def step_columns(steps: Sequence[int]) -> list[Range]:
    """Ranges that cover all steps: one each, or a dozen of about as many steps.

    Example:
        >>> step_columns([0, 5, 10])
        [(0, 0), (5, 5), (10, 10)]
    """
    if len(steps) <= _MOST_COLUMNS:
        return [(step, step) for step in steps]
    ends = np.linspace(0, len(steps), _MOST_COLUMNS + 1).astype(int).tolist()
    return [(steps[a], steps[b - 1]) for a, b in pairwise(ends)]


def _change(
    names: Sequence[str], before: Sequence[float], after: Sequence[float]
) -> dict[str, Any] | None:
    """Change over the tasks with both, both means of these, and how many went up and down."""
    known = [
        {name: float(value) for name, value in zip(names, values, strict=True) if value == value}
        for values in (before, after)
    ]
    change = paired_change(*known)
    if change is None:
        return None
    common = [name for name in known[0] if name in known[1]]
    moved = [known[1][name] - known[0][name] for name in common]
    return {
        **change,
        "before": number(fmean(known[0][name] for name in common)),
        "after": number(fmean(known[1][name] for name in common)),
        "gained": sum(by > 0 for by in moved),
        "lost": sum(by < 0 for by in moved),
    }


def _inside(steps: np.ndarray, wanted: Range) -> np.ndarray:
    return (steps >= wanted[0]) & (steps <= wanted[1])


def usual_kind(reader: RunReader) -> str:
    """The evaluation whose score the run is listed with, if two of it are stored."""
    history = reader.curves()
    kinds = reader.rows.kinds()
    if not kinds:
        raise RunError("no rollout is stored yet; the table of tasks begins with the first step")
    evaluations = [f"eval/{first_and_last(history.metrics, history.config)[0]}", *kinds]
    twice = [kind for kind in evaluations if kind != "train" and len(reader.rows.steps(kind)) > 1]
    return (twice or kinds)[0]


def _kept(
    names: Sequence[str],
    before: np.ndarray,
    labels: Mapping[str, Labels],
    question: TaskQuestion,
) -> list[int]:
    """Numbers of the tasks that fit."""
    text = question.text.casefold()
    wanted = question.labels or {}
    fits = {
        None: np.ones(len(names), dtype=bool),
        "zero": before <= ROUNDING,
        "between": (before > ROUNDING) & (before < SOLVED - ROUNDING),
        "one": before >= SOLVED - ROUNDING,
    }[question.was]
    return [
        task
        for task, name in enumerate(names)
        if fits[task]
        and (not text or text in name.casefold())
        and all(value in labels.get(name, {}).get(key, ()) for key, value in wanted.items())
    ]


def _sorted(
    kept: Sequence[int], names: Sequence[str], means: Sequence[np.ndarray], sort: str
) -> list[int]:
    """Tasks in the wanted order; those without a number last."""
    if sort == "task":
        return sorted(kept, key=lambda task: names[task])
    before, after = means
    values = {"gain": before - after, "loss": after - before, "before": before, "after": after}
    of_task = np.nan_to_num(values[sort], nan=math.inf)
    return sorted(kept, key=lambda task: (of_task[task], names[task]))


def _labels_of_all(names: Sequence[str], labels: Mapping[str, Labels]) -> dict[str, list[str]]:
    """Every label of the tasks, with the values it has."""
    found: dict[str, set[str]] = {}
    for name in names:
        for key, value in labels.get(name, {}).items():
            found.setdefault(key, set()).update(value)
    return {key: sorted(values) for key, values in sorted(found.items())}
