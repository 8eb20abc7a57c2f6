"""The stored rows of a run as one table of short columns, and the long ones on demand.

The index holds a few dozen bytes a row, so 10^5 rollouts fit and are searched with one pass of
Arrow. What a view shows besides is read from the one row group that holds it. Files are indexed
once; while a run writes, only new files are read.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agentrl.data.run.paths import RunPaths
from agentrl.data.store.columns import SCHEMA
from agentrl.errors import RunError
from agentrl.inspect.read.run_files import RunFiles, StoredFile
from agentrl.inspect.read.runs import printable

_SHORT = pa.schema(
    SCHEMA.field(name)
    for name in (
        "task_id", "group_id", "rollout_id", "row_index", "reward", "score", "advantage",
        "termination", "duration_s",
    )
)  # fmt: skip
_PLACE = pa.schema(
    [("kind", pa.string()), ("step", pa.int64()), ("shelf", pa.int64()), ("row", pa.int64())]
)
_EMPTY = pa.schema([*_SHORT, *_PLACE]).empty_table()
_LOOK_S = 2.0
_TICK_S = 0.1
_DAMAGE = (OSError, pa.ArrowException, ValueError, KeyError)
"""What a file that is torn, or no longer the one it was, may raise."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """One trajectory file and its short columns."""

    file: StoredFile
    """File of the rows."""
    kind: str
    """`train` or `eval/NAME`, as its folder says."""
    step: int
    """Step in the file's name."""
    index: pa.Table
    """Short columns, with `kind`, `step`, `shelf` (a running number) and `row` in the file."""
    starts: tuple[int, ...]
    """First row of each row group, and one past the last row."""


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
        self._shelves: dict[Path, Shelf] = {}
        self._broken: dict[Path, str] = {}
        self._table: pa.Table | None = None
        self._next = 0
        self._folders: dict[Path, int] = {}
        self._look_s, self._looked = look_s, 0.0
        self._facts: dict[tuple[int, str], np.ndarray] = {}
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
            wanted = {file.path: file for file in self.files.trajectories}
            new = [
                f for path, f in wanted.items() if path not in known or known[path].file is not f
            ]
            gone = set(self._broken) - wanted.keys() | {file.path for file in new}
            for path in gone:
                self._broken.pop(path, None)
            first = self._next
            self._next += len(new)
            with ThreadPoolExecutor(4) as pool:
                made = list(pool.map(self._index, new, range(first, self._next)))
            fresh = {shelf.file.path: shelf for shelf in made if shelf is not None}
            kept = {**known, **fresh}
            self._shelves = {path: kept[path] for path in wanted if path in kept}
            alive = {_number(shelf) for shelf in self._shelves.values()}
            self._facts = {key: v for key, v in self._facts.items() if key[0] in alive}
            tables = [shelf.index for shelf in self.shelves()]
            self._table = pa.concat_tables(tables) if tables else _EMPTY

    def shelves(self, kind: str | None = None) -> list[Shelf]:
        """Files by kind, `train` first, and step."""
        return sorted(
            (s for s in list(self._shelves.values()) if kind in (None, s.kind)),
            key=lambda shelf: (shelf.kind != "train", shelf.kind, shelf.step),
        )

    def kinds(self) -> list[str]:
        """Kinds that have files, `train` first."""
        return list(dict.fromkeys(shelf.kind for shelf in self.shelves()))

    def steps(self, kind: str) -> list[int]:
        """Steps of a kind, ascending."""
        return [shelf.step for shelf in self.shelves(kind)]

    def table(self) -> pa.Table:
        """All short columns, in the order of `shelves`."""
        if self._table is None:
            self.refresh()
        assert self._table is not None
        return self._table

    def shelf(self, kind: str, step: int) -> Shelf:
        """The file of one kind and step.

        Raises:
            RunError: there is none, or it cannot be read; says what there is.
        """
        for shelf in self._shelves.values():
            if shelf.kind == kind and shelf.step == step:
                return shelf
        steps = self.steps(kind)
        if not steps:
            raise RunError(f"kind {kind!r} has no trajectories here; valid: "
                           f"{', '.join(self.kinds()) or '(none yet)'}")  # fmt: skip
        raise RunError(
            f"step {step} of {kind} has no trajectories that can be read; there are "
            f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
        )

    def token_files(self, step: int) -> list[Path]:
        """Files with what the trainer made of the tokens of a step, one for each rank."""
        begin = f"step_{step:06d}.rank-"
        return [file.path for file in self.files.tokens if file.path.name.startswith(begin)]

    def read(self, shelf: Shelf, rows: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Some columns of some rows of a file, in ascending order of rows.

        Raises:
            RunError: the file is damaged there, or was replaced just now.
        """
        wanted = np.unique(np.asarray(rows, dtype=np.int64))
        parts: list[pa.Table] = []
        try:
            with pq.ParquetFile(shelf.file.path, page_checksum_verification=True) as file:
                if file.metadata.num_rows != shelf.starts[-1]:
                    raise ValueError("it was written again just now; ask once more")
                for group, (start, end) in enumerate(
                    zip(shelf.starts[:-1], shelf.starts[1:], strict=True)
                ):
                    here = wanted[(wanted >= start) & (wanted < end)] - start
                    if len(here):
                        part = file.read_row_group(group, columns=list(columns))
                        parts.append(part if len(here) == end - start else part.take(here))
        except _DAMAGE as error:
            raise RunError(self.damaged(shelf.file.path, error)) from error
        return pa.concat_tables(parts)

    def fact(self, shelf: Shelf, name: str, compute: Callable[[Shelf], np.ndarray]) -> np.ndarray:
        """A number for each row of a file, computed once; NaN all over for a damaged file."""
        key = (_number(shelf), name)
        if key not in self._facts:
            try:
                self._facts[key] = compute(shelf)
            except (RunError, *_DAMAGE):
                return np.full(shelf.starts[-1], np.nan)
        return self._facts[key]

    def _is_unchanged(self) -> bool:
        """Whether the folders say that no file came or went since the last look.

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

    def _index(self, file: StoredFile, number: int) -> Shelf | None:
        of_path = _kind_and_step(file.path)
        if of_path is None:
            return None
        try:
            with pq.ParquetFile(file.path) as parquet:
                footer = parquet.metadata
                rows = [footer.row_group(g).num_rows for g in range(footer.num_row_groups)]
                short = parquet.read(columns=_SHORT.names, use_threads=False).select(_SHORT.names)
                short = short.replace_schema_metadata(None).cast(_SHORT)
        except _DAMAGE as error:
            self.damaged(file.path, error)
            return None
        count = short.num_rows
        kind, step = of_path
        index = (
            short.append_column("kind", pa.repeat(pa.scalar(kind, pa.string()), count))
            .append_column("step", pa.repeat(pa.scalar(step, pa.int64()), count))
            .append_column("shelf", pa.repeat(pa.scalar(number, pa.int64()), count))
            .append_column("row", pa.array(np.arange(count)))
        )
        starts = (0, *np.cumsum(rows).tolist())
        return Shelf(file=file, kind=kind, step=step, index=index, starts=starts)

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


def _kind_and_step(path: Path) -> tuple[str, int] | None:
    """Kind and step of a file, as its path says."""
    digits = path.stem.removeprefix("step_")
    if not digits.isdigit() or len(digits) > 15:
        return None
    folder = path.parent
    if folder.name == "train" and folder.parent.name == "trajectories":
        return "train", int(digits)
    return f"eval/{printable(unquote(folder.name, errors='replace'))}", int(digits)
