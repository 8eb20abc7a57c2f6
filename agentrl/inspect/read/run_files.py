"""Which files of a run can be read just now, so that one that is torn does not hide the others.

A run may be writing, copied half, or of another version; code that opens its files with another
library than ours (DuckDB) asks here first which of them are whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.data.run.paths import RunPaths
from agentrl.data.store import token_store, trajectory_store
from agentrl.data.store.bounds import open_parquet, why_not_read
from agentrl.data.store.columns import OPTIONAL
from agentrl.data.store.step_files import step_of, stored_steps
from agentrl.machine.inside import within
from agentrl.metrics import read_metrics

_EFFECTIVE = os.access in os.supports_effective_ids
"""Whether the system can check what this process may do, and not who started it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One parquet file of a run that can be read."""

    path: Path
    """Absolute path of the file."""
    rows: int
    """Table rows, by its footer."""
    lacks: frozenset[str] = frozenset()
    """Columns of `OPTIONAL` that it does not have, since an older version wrote it."""


class RunFiles:
    """The readable parquet files of one run; footers are read once while a file stays as it is.

    Example:
        >>> files = RunFiles(Path("runs/my-run"))
        >>> changed = files.refresh()
        >>> [file.path.name for file in files.trajectories]
        ['step_000001.parquet']
    """

    def __init__(self, run: Path) -> None:
        self.run = Path(run).resolve()
        self.paths = RunPaths(self.run)
        self.trajectories: tuple[StoredFile, ...] = ()
        self.tokens: tuple[StoredFile, ...] = ()
        self._looks: dict[Path, tuple[tuple[int, int, int], StoredFile | str]] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for each file that was left out, with the reason, ordered by file."""
        return tuple(
            f"{path.relative_to(self.run)}: {look}"
            for path, (_, look) in sorted(self._looks.items())
            if isinstance(look, str)
        )

    def refresh(self) -> bool:
        """Look at the folders again.

        Returns:
            Whether anything differs from the last look.
        """
        trajectories, tokens_folder = self.paths.trajectories, self.paths.tokens
        folders = [trajectories / "train", *sorted(_folders(trajectories / "eval"))]
        paths = [path for folder in folders for path in _stored(folder)]
        tokens = _parquet(tokens_folder)
        before = {path: mark for path, (mark, _) in self._looks.items()}
        closed = [f for f in (trajectories, *folders, tokens_folder) if _is_closed(f)]
        for path in self._looks.keys() - {*paths, *tokens}:
            del self._looks[path]
        for folder in closed:
            self._looks[folder] = ((0, 0, 0), "you have no permission to read it")
        for path in paths:
            self._look(path, trajectory_store.why_unreadable)
        for path in tokens:
            self._look(path, token_store.why_unreadable)
        self.trajectories = self._whole_steps(paths)
        self.tokens = self._readable(tokens)
        return before != {path: mark for path, (mark, _) in self._looks.items()}

    def leave_out_damaged(self) -> int:
        """Read every file to its end and leave out what a footer did not show.

        Returns:
            How many files are left out for that reason.
        """
        found = 0
        for path, (mark, look) in list(self._looks.items()):
            if isinstance(look, str):
                continue
            try:
                with open_parquet(path) as file:
                    for group in range(file.num_row_groups):
                        # Also finds text that is not UTF-8, which a reader would trip over.
                        file.read_row_group(group).validate(full=True)
            except FileNotFoundError:
                del self._looks[path]
                found += 1
            except (OSError, pa.ArrowException) as error:
                self._looks[path] = (mark, why_not_read(error))
                found += 1
        if found:
            self.trajectories = self._whole_steps([file.path for file in self.trajectories])
            self.tokens = self._readable([file.path for file in self.tokens])
        return found

    def _whole_steps(self, paths: Collection[Path]) -> tuple[StoredFile, ...]:
        """Files of the steps of which every part can be read."""
        return tuple(file for step in by_step(self._readable(paths)) for file in step)

    def _readable(self, paths: Collection[Path]) -> tuple[StoredFile, ...]:
        looks = [self._looks[path][1] for path in paths if path in self._looks]
        return tuple(look for look in looks if isinstance(look, StoredFile))

    def _look(self, path: Path, why_unreadable: Callable[[pq.ParquetFile], str]) -> None:
        try:
            status = within(self.run, path).stat()
            mark = (status.st_mtime_ns, status.st_size, status.st_ino)
            if path in self._looks and self._looks[path][0] == mark:
                return
            self._looks[path] = (mark, _footer(path, why_unreadable))
        except FileNotFoundError:
            self._looks.pop(path, None)
        except OSError as error:
            self._looks[path] = ((0, 0, 0), why_not_read(error))


def by_step(files: Iterable[StoredFile]) -> list[tuple[StoredFile, ...]]:
    """The files of each step together, in the order of its rows; a step without a part is left out.

    Example:
        >>> two = [StoredFile(path=Path(f"train/step_000001.part-{n}-of-2.parquet"), rows=1)
        ...        for n in (1, 0)]
        >>> [[file.path.name for file in step] for step in by_step(two)]
        [['step_000001.part-0-of-2.parquet', 'step_000001.part-1-of-2.parquet']]
    """
    by_folder: dict[Path, dict[Path, StoredFile]] = {}
    for file in files:
        by_folder.setdefault(file.path.parent, {})[file.path] = file
    return [
        tuple(here[path] for path in paths)
        for here in by_folder.values()
        for paths in stored_steps(here).values()
    ]


def metric_values(run: Path) -> Iterator[tuple[int, float | None, str, float]]:
    """`(step, time, name, value)` of all numbers in `metrics.jsonl`; the last line of a step wins.

    A missing file and torn lines give nothing.
    """
    found: dict[tuple[int, str], tuple[float | None, float]] = {}
    with contextlib.suppress(OSError):
        for line in read_metrics(RunPaths(Path(run)).metrics_file):
            time = line.get("time")
            moment = float(time) if isinstance(time, (int, float)) else None
            for name, value in line.items():
                if name not in ("step", "time") and isinstance(value, (int, float)):
                    found[line["step"], name] = (moment, float(value))
    for (step, name), (moment, value) in found.items():
        yield step, moment, name, value


def _footer(path: Path, why_unreadable: Callable[[pq.ParquetFile], str]) -> StoredFile | str:
    try:
        with open_parquet(path) as file:
            reason = why_unreadable(file)
            rows = file.metadata.num_rows
            lacks = OPTIONAL.difference(file.schema_arrow.names)
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        return why_not_read(error)
    return reason or StoredFile(path=path, rows=rows, lacks=lacks)


def _folders(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in folder.iterdir() if path.is_dir()]
    return []


def _parquet(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        # A file that is being written has a name that begins with a dot.
        return sorted(folder.glob("step_*.parquet"))
    return []


def _stored(folder: Path) -> list[Path]:
    """Trajectory files of steps of which all parts are there."""
    paths = _parquet(folder)
    whole = {path for files in stored_steps(paths).values() for path in files}
    return [path for path in paths if path in whole or step_of(path) is None]


def _is_closed(folder: Path) -> bool:
    """Whether a folder is there and may not be looked into."""
    rights = os.R_OK | os.X_OK
    with contextlib.suppress(OSError):
        return folder.exists() and not os.access(folder, rights, effective_ids=_EFFECTIVE)
    return False
