"""Labels of the tasks of a run, kept while their file stays the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentrl.data.run.task_labels import Labels, read_task_labels


class TaskLabels:
    """Labels of one run; read again only after the file was replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: tuple[tuple[int, int] | None, dict[str, dict[str, Labels]]] = (None, {})

    def of_kind(self, kind: str) -> Mapping[str, Labels]:
        """Id of a task to its labels.

        Args:
            kind: `train` or `eval/NAME`.
        """
        return self._all().get(kind, {})

    def of_task(self, task: str) -> Labels:
        """Labels of a task, from the first kind that has any."""
        return next((of[task] for of in self._all().values() if task in of), {})

    def _all(self) -> dict[str, dict[str, Labels]]:
        try:
            status = self._path.stat()
        except OSError:
            return {}
        mark = (status.st_mtime_ns, status.st_size)
        if self._kept[0] != mark:
            self._kept = (mark, read_task_labels(self._path))
        return self._kept[1]
