"""Columns of stored steps that were read before, kept in memory within one bound for all runs.

Taking a step from its file again costs ten times what searching it does. What is kept is known by
the size of its files and when they last changed in any way, so that a file that was written again
is read again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from agentrl.inspect.read.shelf import Shelf

_MOST_BYTES = 2**29
Groups = tuple[tuple[int, pa.Table], ...]
"""Row groups of a step, each with the row it begins at."""
Mark = tuple[tuple[tuple[Path, int, int, int], ...], tuple[str, ...]]
"""Files of a step as they are now, and columns of them."""


class KeptColumns:
    """Row groups by files and columns.

    When there is no room, those of other runs go. Those of the same run stay, since a search reads
    all of its steps in order: what would go is what the next search needs first.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[Mark, tuple[Path, int, Groups]] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        """Guards both; searches read several steps at a time."""

    def get(self, mark: Mark) -> Groups | None:
        """The row groups that were kept; None where there are none."""
        kept = self._kept.get(mark)
        return kept[2] if kept else None

    def keep(self, mark: Mark, run: Path, groups: Groups) -> None:
        """Keep the row groups of a step, if there is room or another run can make some.

        Args:
            mark: of its files, taken before they were read.
            run: that it is of.
            groups: all of the step.
        """
        size = sum(table.nbytes for _, table in groups)
        with self._lock:
            if mark in self._kept or size > self._most_bytes:
                return
            for other in [key for key, (of, *_) in self._kept.items() if of != run]:
                if self._bytes + size <= self._most_bytes:
                    break
                self._bytes -= self._kept.pop(other)[1]
            if self._bytes + size <= self._most_bytes:
                self._kept[mark] = (run, size, groups)
                self._bytes += size


KEPT = KeptColumns()
"""Shared by all runs that this process shows."""


def mark_of(shelf: Shelf, columns: Sequence[str]) -> Mark:
    """The files of a step as they are now.

    Raises:
        OSError: one of them is gone.
    """
    files: list[tuple[Path, int, int, int]] = []
    for part in shelf.parts:
        status = part.file.path.stat()
        files.append((part.file.path, status.st_ctime_ns, status.st_size, status.st_ino))
    return tuple(files), tuple(columns)
