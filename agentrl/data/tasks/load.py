"""Datasets as lists of `Task`: what a run file's `dataset` section names, checked row by row."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Collection
from itertools import islice
from pathlib import Path

from agentrl.config.schema import DatasetSection
from agentrl.data.tasks.difficulty import keep_by_pass_rate, keep_chosen
from agentrl.data.tasks.files import SourceRow
from agentrl.data.tasks.formats import labels_in
from agentrl.data.tasks.rows import check_columns, has_id, task_of
from agentrl.data.tasks.sources import open_source
from agentrl.errors import DataError, some_of
from agentrl.types import Task

logger = logging.getLogger(__name__)


def load_tasks(
    section: DatasetSection, *, base: Path | None = None, chosen: Collection[str] | None = None
) -> list[Task]:
    """The tasks of a dataset section, in the order of the source.

    Rows are read one at a time and reading stops at `section.limit`. A row without an id gets one
    made of its content, so it keeps it when other rows come and go; rows that say the same get
    `-2`, `-3` and so on.

    Args:
        section: source, split, columns, arguments, limit, and which pass rates are left out.
        base: folder that relative paths start from; default the working directory.
        chosen: ids of the tasks that the pass rates left when a run began, for its resume; None
            measures now.

    Raises:
        DataError: no such source, no rows, a broken row, a missing column, an id that comes twice;
            names the file and the row. Also as `keep_by_pass_rate` and `keep_chosen`.
        ConfigError: an import string or a column mapping that cannot be used.
    """
    check_columns(section.columns)
    tasks: list[Task] = []
    seen: dict[str, str] = {}
    copies: dict[str, int] = {}
    with contextlib.closing(open_source(section, base=base)) as rows:
        for row in islice(rows, section.limit):
            task = task_of(row, section.columns, section.split)
            if not has_id(row, section.columns):
                copies[task.id] = copies.get(task.id, 0) + 1
                if copies[task.id] > 1:
                    task = dataclasses.replace(task, id=f"{task.id}-{copies[task.id]}")
            if task.id in seen:
                raise DataError(
                    f"{row.where}: id {task.id!r} was used before, by {seen[task.id]}; ids must be "
                    "unique in a dataset; dataset.columns.id=NAME takes another column"
                )
            seen[task.id] = row.where
            if not tasks:
                _say_label(row, task, section)
            tasks.append(task)
    if not tasks:
        raise DataError(f"dataset source {section.source!r}, split {section.split!r}: no rows")
    repeated = sum(count - 1 for count in copies.values())
    if repeated:
        logger.warning("%s: %d rows repeat an earlier row word for word", section.source, repeated)
    if chosen is not None:
        return keep_chosen(tasks, section, frozenset(chosen))
    return keep_by_pass_rate(tasks, section, base=base)


def _say_label(row: SourceRow, task: Task, section: DatasetSection) -> None:
    """Warn where the first row has several columns that may be the label, as a MATH data set."""
    others = [name for name in labels_in(row.values) if name != task.label_column]
    if task.label_column and "label" not in section.columns and others:
        logger.warning(
            "%s: the label is the column %r, and not %s; dataset.columns.label=NAME takes another",
            section.source,
            task.label_column,
            some_of(map(repr, others), 6),
        )
