"""Trajectories on disk: the rows of a (step, kind), written whole or not at all.

    DIRECTORY/train/step_000012.parquet
    DIRECTORY/eval/NAME/step_000012.parquet

Several trainer ranks store a part each, which readers see as one step (`step_files`).

A step that is done again after a resume replaces its file. Readers may look at any time: a file
appears complete, and a file that is torn, of another make or of a newer schema is skipped with one
warning instead of hiding the rest of the run.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agentrl.data.store.atomic import atomic_file
from agentrl.data.store.bounds import open_parquet, why_not_read
from agentrl.data.store.columns import (
    OPTIONAL,
    SCHEMA,
    SCHEMA_VERSION,
    StoredTrajectory,
    decode,
    encode,
    escape,
    schema_of,
    why_foreign,
    with_optional,
)
from agentrl.data.store.parquet_writer import write_parquet
from agentrl.data.store.step_files import part_name, step_name, step_of, stored_steps
from agentrl.errors import DataError
from agentrl.machine.inside import within
from agentrl.types import Trajectory, TrajectoryGroup
from agentrl.types.explanation import FIELDS

logger = logging.getLogger(__name__)

_VERSION_KEY = "agentrl.schema_version"
_NUMBERS = (
    "duration_s",
    "extra_logs.list.element.value",
    *(f"turns.list.element.{name}" for name in ("start", "end", "duration_s")),
    *(f"turns.list.element.tool_calls.list.element.span_{side}" for side in ("start", "end")),
)
"""Columns of numbers that hardly repeat. Log-probabilities do: where the policy is all but certain,
float32 has few."""
_CHUNK_BYTES = 8 * 2**20
"""Text and tokens of one row group, the least that is read to see one rollout: a tenth of a second.
Smaller groups compress worse (by a quarter at 2 MiB), larger ones are waited for."""


class TrajectoryStore:
    """Writes and reads the trajectories of a run.

    Example:
        >>> store = TrajectoryStore(Path("runs/my-run/trajectories"))
        >>> best = max(store.read("train", step=12), key=lambda s: s.trajectory.reward or 0.0)
    """

    def __init__(self, directory: Path) -> None:
        """A store in `directory`, which is made on the first write."""
        self.directory = Path(directory)
        self._warned: set[Path] = set()

    def write(
        self,
        step: int,
        kind: str,
        groups: Sequence[TrajectoryGroup],
        advantages: Mapping[str, float] | None = None,
    ) -> Path:
        """Store all rows of `groups`; replaces what was stored for the same step and kind.

        Args:
            step: not negative.
            kind: `train` or `eval/NAME`.
            groups: every group of the step, dropped rollouts included.
            advantages: by `rollout_id`; rollouts that are not in it were not in the batch.

        Returns:
            The file.

        Raises:
            DataError: a bad step or kind, a value that fits no column, a disk that is full. No
                half file is left, and an older file of the same step stays as it was.
        """
        path = self._write(self.path(step, kind), step, kind, groups, advantages)
        for other in self._files_of(step, kind):
            if other != path:
                other.unlink(missing_ok=True)
        return path

    def write_part(
        self,
        step: int,
        kind: str,
        groups: Sequence[TrajectoryGroup],
        advantages: Mapping[str, float] | None = None,
        *,
        part: int,
        parts: int,
    ) -> Path:
        """Store the part of a step that one of several writers holds; see `remove`.

        The step is there once all parts are. Its groups are read in the order of the parts.

        Args:
            step: not negative.
            kind: `train` or `eval/NAME`.
            groups: of this part; may be none.
            advantages: as in `write`.
            part: number of this part, from 0.
            parts: number of parts.

        Returns:
            The file.

        Raises:
            DataError: as `write`.
        """
        if parts == 1:
            return self.write(step, kind, groups, advantages)
        name = part_name(step, part, parts)
        return self._write(self.path(step, kind).with_name(name), step, kind, groups, advantages)

    def remove(self, step: int, kind: str) -> None:
        """Remove a step and what is there of its parts, before parts are written again."""
        for path in self._files_of(step, kind):
            path.unlink(missing_ok=True)

    def _write(
        self,
        path: Path,
        step: int,
        kind: str,
        groups: Sequence[TrajectoryGroup],
        advantages: Mapping[str, float] | None,
    ) -> Path:
        within(self.directory, path)
        known = advantages or {}
        rows = [
            StoredTrajectory(
                step=step,
                kind=kind,
                advantage=known.get(trajectory.rollout_id),
                trajectory=trajectory,
            )
            for group in groups
            for trajectory in group.trajectories
        ]
        write_rows(path, rows)
        self._warned.discard(path)
        return path

    def read(
        self,
        kind: str | None = None,
        *,
        step: int | None = None,
        task_id: str | None = None,
        rollout_ids: Collection[str] | None = None,
    ) -> Iterator[StoredTrajectory]:
        """Stored rows that match every given condition, by kind, then step, then as written.

        A file comes whole or not at all: one that is damaged anywhere gives no row.
        """
        for table in self._tables(kind, step, None):
            if task_id is not None:
                table = table.filter(pc.field("task_id") == escape(task_id))
            if rollout_ids is not None:
                names = pa.array([escape(name) for name in rollout_ids], pa.string())
                table = table.filter(pc.field("rollout_id").isin(names))
            yield from decode(table)

    def table(
        self, columns: Sequence[str], kind: str | None = None, *, step: int | None = None
    ) -> pa.Table:
        """Some columns of the stored rows as one Arrow table, without reading the others."""
        unknown = set(columns) - set(SCHEMA.names)
        if unknown:
            raise DataError(f"no columns {sorted(unknown)}; valid: {', '.join(SCHEMA.names)}")
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        return pa.concat_tables(
            [schema.empty_table(), *self._tables(kind, step, list(columns))],
        )

    def kinds(self) -> list[str]:
        """Kinds that have files, `train` first."""
        found = {
            "/".join(unquote(part, errors="surrogatepass") for part in folder.parts)
            for folder in (
                path.parent.relative_to(self.directory)
                for path in self.directory.rglob("step_*.parquet")
            )
            if folder.parts == ("train",) or (len(folder.parts) == 2 and folder.parts[0] == "eval")
        }
        return sorted(found, key=lambda kind: (kind != "train", kind))

    def steps(self, kind: str = "train") -> list[int]:
        """Steps that are stored for this kind, all of their parts, ascending."""
        return list(self._steps(kind))

    def path(self, step: int, kind: str) -> Path:
        """The file of one step and kind where it is stored whole, whether or not it exists.

        Raises:
            DataError: a bad step or kind.
        """
        if step < 0:
            raise DataError(f"a step is not negative, got {step}")
        return self._folder(kind) / step_name(step)

    def _steps(self, kind: str) -> dict[int, list[Path]]:
        return stored_steps(self._folder(kind).glob("*.parquet"))

    def _files_of(self, step: int, kind: str) -> list[Path]:
        """Everything that belongs to a step, parts of an unfinished one too."""
        folder = self._folder(kind)
        return [path for path in folder.glob("step_*.parquet") if step_of(path) == step]

    def _folder(self, kind: str) -> Path:
        if kind == "train":
            return self.directory / "train"
        prefix, slash, name = kind.partition("/")
        if prefix != "eval" or not slash or not name:
            raise DataError(f"kind {kind!r}: expected 'train' or 'eval/NAME'")
        # A dataset's name is free text, and must neither leave this folder nor look like a
        # partition (`a=b`), which DuckDB would read as a column.
        quoted = quote(name, safe="", errors="surrogatepass")
        if quoted.startswith("."):
            quoted = "%2E" + quoted[1:]
        return self.directory / "eval" / quoted

    def _tables(
        self, kind: str | None, step: int | None, columns: list[str] | None
    ) -> Iterator[pa.Table]:
        for name in self.kinds() if kind is None else [kind]:
            for number, files in self._steps(name).items():
                if step is None or number == step:
                    yield from self._load_all(files, columns)

    def _load_all(self, files: Sequence[Path], columns: list[str] | None) -> list[pa.Table]:
        """The tables of a step; none where one of its files is damaged."""
        found = [self._load(path, columns) for path in files]
        if None in found:
            return []
        return [table for tables in found for table in tables or ()]

    def _load(self, path: Path, columns: list[str] | None) -> list[pa.Table] | None:
        try:
            with open_parquet(within(self.directory, path)) as file:
                reason = why_unreadable(file)
                if not reason:
                    return [
                        with_optional(
                            file.read_row_group(group, columns=columns), columns or SCHEMA.names
                        )
                        .select(columns or SCHEMA.names)
                        .replace_schema_metadata(None)
                        for group in range(file.num_row_groups)
                    ]
        except FileNotFoundError:
            # The file of a run that was cleared away while we were looking.
            return None
        except (OSError, pa.ArrowException) as error:
            reason = why_not_read(error)
        self._warn(path, reason)
        return None

    def _warn(self, path: Path, reason: str) -> None:
        if path not in self._warned:
            self._warned.add(path)
            logger.warning("skipping %s: %s", path, reason)


def write_rows(path: Path, rows: Iterable[StoredTrajectory]) -> int:
    """Write one trajectory file, atomically, and return how many rows it holds.

    Raises:
        DataError: as `TrajectoryStore.write`.
    """
    count = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal count
        for chunk in _chunks(rows):
            count += len(chunk)
            yield encode(chunk, schema)

    schema = schema_of(rows) if isinstance(rows, Sequence) else SCHEMA
    metadata = {_VERSION_KEY: str(SCHEMA_VERSION)}
    with atomic_file(path) as file:
        write_parquet(file, schema, tables(), split=_NUMBERS, metadata=metadata)
    return count


def _chunks(rows: Iterable[StoredTrajectory]) -> Iterator[list[StoredTrajectory]]:
    chunk: list[StoredTrajectory] = []
    size = 0
    for stored in rows:
        weight = _weight(stored.trajectory)
        if chunk and size + weight > _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(stored)
        size += weight
    if chunk:
        yield chunk


def _weight(trajectory: Trajectory) -> int:
    """About how many bytes of memory a row takes in Arrow."""
    text = sum(
        len(turn.text)
        + sum(len(result.text) for result in turn.tool_results)
        + sum(2 * len(call.raw) for call in turn.tool_calls)
        for turn in trajectory.turns
    )
    if trajectory.explanation is not None:
        text += sum(len(getattr(trajectory.explanation, name)) for name in FIELDS)
    tokens = len(trajectory.prompt_ids) + 4 * len(trajectory.response_ids)
    return text + len(trajectory.prompt_text) + 4 * tokens


def why_unreadable(file: pq.ParquetFile) -> str:
    """Why a well-formed parquet file is not one of ours; empty if it is."""
    needed = set(SCHEMA.names) - OPTIONAL
    return why_foreign(file, "trajectory", key=_VERSION_KEY, latest=SCHEMA_VERSION, needed=needed)
