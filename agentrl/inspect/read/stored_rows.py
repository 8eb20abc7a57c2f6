"""The stored rows of a run as one table of short columns, and the long ones on demand.

The index holds a few dozen bytes a row, so 10^5 rollouts fit and are searched with one pass of
Arrow. What a view shows besides is read from the one row group that holds it. Files are indexed
once; while a run writes, only new files are read. The parts of a step that several ranks stored
are one shelf, whose rows run on from part to part.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agentrl.data.run.paths import RunPaths
from agentrl.data.store.bounds import open_parquet
from agentrl.data.store.columns import with_optional
from agentrl.errors import RunError, choices
from agentrl.inspect.read.run_files import RunFiles, StoredFile, by_step
from agentrl.inspect.read.shelf import DAMAGE, EMPTY_INDEX, Shelf, ShelfPart, make_shelf

_LOOK_S = 2.0
_TICK_S = 0.1
Result = TypeVar("Result")


class StoredRows:
    """The rows of one run.

    Example:
        >>> rows = StoredRows(Path("runs/my-run"))
        >>> rows.refresh()
        >>> rows.steps("train")
        [1, 2, 3]
    """

    def __init__(self, run: Path, *, look_s: float = _LOOK_S) -> None:
        """Read nothing yet; every `look_s` seconds all files are looked at, not only folders."""
        self.files = RunFiles(run)
        self._shelves: dict[tuple[Path, ...], Shelf] = {}
        self._broken: dict[Path, str] = {}
        self._table: pa.Table | None = None
        self._next = 0
        self._folders: dict[Path, int] = {}
        self._look_s, self._looked = look_s, 0.0
        self._facts: dict[tuple[int, str], Any] = {}
        self._of_all: dict[str, tuple[pa.Table, Any]] = {}
        self._lock = threading.Lock()
        """Guards all of the above while one thread looks at the folders again."""

    @property
    def notes(self) -> list[str]:
        """One line for each file that was left out, with the reason."""
        run = self.files.run
        broken = list(self._broken.items())  # a search may find another one meanwhile
        damaged = [f"{path.relative_to(run)}: {why}" for path, why in broken]
        return [*self.files.notes, *sorted(damaged)]

    def refresh(self) -> None:
        """Take in what the run has written since."""
        with self._lock:
            if self._is_unchanged() or (not self.files.refresh() and self._table is not None):
                return
            known = self._shelves
            wanted = {_paths(files): files for files in by_step(self.files.trajectories)}
            new = [
                files
                for paths, files in wanted.items()
                if paths not in known or _is_other(known[paths], files)
            ]
            there = {path for paths in wanted for path in paths}
            for path in set(self._broken) - there | {file.path for files in new for file in files}:
                self._broken.pop(path, None)
            first = self._next
            self._next += len(new)
            with ThreadPoolExecutor(4) as pool:
                made = list(pool.map(self._shelf_of, new, range(first, self._next)))
            kept = {**known, **dict(zip(map(_paths, new), made, strict=True))}
            self._shelves = {
                paths: shelf for paths in wanted if (shelf := kept.get(paths)) is not None
            }
            alive = {_number(shelf) for shelf in self._shelves.values()}
            self._facts = {key: v for key, v in self._facts.items() if key[0] in alive}
            tables = [shelf.index for shelf in self.shelves()]
            self._table = pa.concat_tables(tables) if tables else EMPTY_INDEX

    def shelves(self, kind: str | None = None) -> list[Shelf]:
        """Stored steps by kind, `train` first, and step."""
        return sorted(
            (s for s in list(self._shelves.values()) if kind in (None, s.kind)),
            key=lambda shelf: (shelf.kind != "train", shelf.kind, shelf.step),
        )

    def kinds(self) -> list[str]:
        """Kinds that have steps, `train` first."""
        return list(dict.fromkeys(shelf.kind for shelf in self.shelves()))

    def steps(self, kind: str) -> list[int]:
        """Steps of a kind, ascending."""
        return [shelf.step for shelf in self.shelves(kind)]

    def steps_of(self, kind: str) -> list[int]:
        """Steps of a kind that has some.

        Raises:
            RunError: it has none; says what there is.
        """
        steps, kinds = self.steps(kind), self.kinds()
        if not kinds:
            raise RunError("no rollout is stored here; the first ones come with the first step")
        if not steps:
            raise RunError(f"kind: {choices(kind, kinds)}")
        return steps

    def table(self) -> pa.Table:
        """All short columns, in the order of `shelves`."""
        if self._table is None:
            self.refresh()
        assert self._table is not None
        return self._table

    def shelf(self, kind: str, step: int) -> Shelf:
        """The stored step of one kind.

        Raises:
            RunError: there is none, or it cannot be read; says what there is.
        """
        for shelf in self._shelves.values():
            if shelf.kind == kind and shelf.step == step:
                return shelf
        steps = self.steps_of(kind)
        raise RunError(
            f"step {step} of {kind} has no trajectories that can be read; there are "
            f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
        )

    def token_files(self, step: int) -> list[Path]:
        """Files with what the trainer made of the tokens of a step, one for each rank."""
        begin = f"step_{step:06d}.rank-"
        return [file.path for file in self.files.tokens if file.path.name.startswith(begin)]

    def read(self, shelf: Shelf, rows: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Some columns of some rows of a shelf, in ascending order of rows.

        Raises:
            RunError: a file is damaged there, or was replaced just now.
        """
        wanted = np.unique(np.asarray(rows, dtype=np.int64))
        tables: list[pa.Table] = []
        for part in shelf.parts:
            here = wanted[(wanted >= part.starts[0]) & (wanted < part.starts[-1])]
            if len(here):
                tables += self._read_part(part, here, columns)
        return pa.concat_tables(tables)

    def _read_part(
        self, part: ShelfPart, wanted: np.ndarray, columns: Sequence[str]
    ) -> list[pa.Table]:
        tables: list[pa.Table] = []
        try:
            with open_parquet(part.file.path) as file:
                part.check(file)
                for group, (start, end) in enumerate(pairwise(part.starts)):
                    here = wanted[(wanted >= start) & (wanted < end)] - start
                    if len(here):
                        table = with_optional(
                            file.read_row_group(group, columns=list(columns)), columns
                        )
                        tables.append(table if len(here) == end - start else table.take(here))
        except DAMAGE as error:
            raise RunError(self.damaged(part.file.path, error)) from error
        return tables

    def fact(self, shelf: Shelf, name: str, compute: Callable[[Shelf], np.ndarray]) -> np.ndarray:
        """A number for each row of a shelf, computed once; NaN all over where one is damaged."""
        try:
            return self.kept(shelf, name, compute)
        except (RunError, *DAMAGE):
            return np.full(shelf.rows, np.nan)

    def kept(self, shelf: Shelf, name: str, compute: Callable[[Shelf], Result]) -> Result:
        """A result of `compute`, worked out once while the files of the shelf stay as they are."""
        key = (_number(shelf), name)
        if key not in self._facts:
            self._facts[key] = compute(shelf)
        return self._facts[key]

    def of_all(self, name: str, compute: Callable[[pa.Table], Result]) -> Result:
        """A result of `compute` over `table()`, worked out once while that stays as it is."""
        table = self.table()
        kept = self._of_all.get(name)
        if kept is None or kept[0] is not table:
            kept = self._of_all[name] = (table, compute(table))
        return kept[1]

    def _is_unchanged(self) -> bool:
        """Whether the folders show that no file came or went since the last look.

        A folder changes when a run writes, since files appear in it whole. A file that is being
        copied grows without that, so every few seconds all of them are looked at.
        """
        mark = _folder_times(self.files.run)
        now, before = time.time(), self._looked
        # Two changes within a tick of the file system's clock look like one.
        quiet = now - max(mark.values(), default=0) / 1e9 > _TICK_S
        unchanged = quiet and mark == self._folders and now - before < self._look_s
        if not unchanged:
            self._folders, self._looked = mark if quiet else {}, now
        return unchanged

    def _shelf_of(self, files: Sequence[StoredFile], number: int) -> Shelf | None:
        return make_shelf(files, number, damaged=self.damaged)

    def damaged(self, path: Path, error: Exception) -> str:
        """Take note of a file that turned out to be damaged; gives the words for an error."""
        first = (str(error).splitlines() or [type(error).__name__])[0]
        self._broken[path] = f"torn or damaged: {first}"
        return f"{path.relative_to(self.files.run)} cannot be read: {first}"


def _folder_times(run: Path) -> dict[Path, int]:
    """When each folder of trajectories and tokens last changed, in nanoseconds."""
    top = RunPaths(run).trajectories
    folders = [top, top / "train", top / "eval", RunPaths(run).tokens]
    with contextlib.suppress(OSError):
        folders += [Path(entry.path) for entry in os.scandir(top / "eval")]
    times: dict[Path, int] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            times[folder] = folder.stat().st_mtime_ns
    return times


def chosen(table: pa.Table, **equal: str | int) -> pa.Table:
    """The rows of an index whose columns equal the given values."""
    mask = None
    for name, value in equal.items():
        here = pc.field(name) == pa.scalar(value, table.schema.field(name).type)
        mask = here if mask is None else mask & here
    return table if mask is None else table.filter(mask)


def rollouts_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Index rows by rollout, in the order in which rollouts first appear; rows by number."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["rollout_id"], []).append(row)
    for members in found.values():
        yield sorted(members, key=lambda row: row["row_index"])


def _number(shelf: Shelf) -> int:
    return shelf.index.column("shelf")[0].as_py() if shelf.index.num_rows else -1


def _paths(files: Sequence[StoredFile]) -> tuple[Path, ...]:
    return tuple(file.path for file in files)


def _is_other(shelf: Shelf, files: Sequence[StoredFile]) -> bool:
    """Whether one of its files was written again since it was indexed."""
    return any(part.file is not file for part, file in zip(shelf.parts, files, strict=True))
