"""Labels of the tasks of a run, such as family, level or tag, by which views filter.

A label is a column of the data set's rows with few values: one line of the file for each task that
has any, so that the run's own folder is enough to filter by them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.data.run.read import read_objects
from agentrl.data.store.atomic import atomic_file
from agentrl.types import Task

Labels = Mapping[str, tuple[str, ...]]
"""Name of a label to its values; one value, or several where the column is a list of tags."""

_MOST_VALUES = 100
"""A column with more values is no label: nobody chooses from so many."""
_MOST_CHARS = 60
_MOST_TASKS = 200_000


def write_task_labels(path: Path, sets: Mapping[str, Sequence[Task]]) -> None:
    """Write the labels of all tasks; no file where no column is one.

    Args:
        path: of the file, as `RunPaths.task_labels_file`.
        sets: tasks of each kind, `train` or `eval/NAME`.

    Raises:
        DataError: the disk is full.
    """
    lines: list[str] = []
    for kind, tasks in sets.items():
        names = _label_names(tasks)
        for task in tasks[:_MOST_TASKS] if names else ():
            labels = {name: found for name in names if (found := _values(task.metadata.get(name)))}
            if labels:
                lines.append(json.dumps({"kind": kind, "task": task.id, "labels": labels}) + "\n")
    if lines:
        with atomic_file(path) as file:
            file.write("".join(lines).encode())


def read_task_labels(path: Path) -> dict[str, dict[str, Labels]]:
    """Kind to id of a task to its labels; lines that are torn or not ours are left out."""
    found: dict[str, dict[str, Labels]] = {}
    for record in read_objects(path):
        kind, task, labels = ((record or {}).get(key) for key in ("kind", "task", "labels"))
        if isinstance(kind, str) and isinstance(task, str) and isinstance(labels, dict):
            of_task = {
                name: values
                for name, value in labels.items()
                if 0 < len(name) <= _MOST_CHARS and (values := _values(value))
            }
            found.setdefault(kind, {})[task] = of_task
    return found


def _label_names(tasks: Sequence[Task]) -> list[str]:
    """Columns of metadata that are labels: short values, at least two and not too many of them."""
    seen: dict[str, set[str]] = {}
    refused: set[str] = set()
    for task in tasks:
        for name, value in task.metadata.items():
            if name in refused:
                continue
            values = _values(value)
            known = seen.setdefault(name, set())
            known.update(values or ())
            if (values is None and value is not None) or len(known) > _MOST_VALUES:
                refused.add(name)
    # A value of its own for each task names the task and groups nothing.
    return [
        name
        for name, known in seen.items()
        if name not in refused and len(known) > 1 and (len(known) < len(tasks) or len(tasks) < 3)
    ]


def _values(value: Any) -> tuple[str, ...] | None:
    """A value as the texts of a label; None where it is none."""
    if isinstance(value, (list, tuple)):
        if len(value) > _MOST_VALUES:
            return None
        parts = [_values(item) for item in value if not isinstance(item, (list, tuple))]
        known = [part for part in parts if part]
        return tuple(dict.fromkeys(part[0] for part in known)) if len(known) == len(value) else None
    if isinstance(value, bool):
        return ("true" if value else "false",)
    if isinstance(value, (int, float)):
        return (f"{value:g}",)
    if isinstance(value, str) and 0 < len(value) <= _MOST_CHARS:
        return (value,)
    return None
