"""A stored step as the inspector reads it: its files, and their short columns as one table.

Invariant: the rows of a step are numbered from file to file, so that nobody else has to know how
many ranks have stored it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.data.store.bounds import open_parquet
from agentrl.data.store.columns import SCHEMA
from agentrl.data.store.step_files import step_of
from agentrl.inspect.read.run_files import StoredFile
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
EMPTY_INDEX = pa.schema([*_SHORT, *_PLACE]).empty_table()
"""Index of no rows."""
_LAST_STEP = 10**15
"""A larger number in the name of a file is no step, and fits in no column."""
DAMAGE = (OSError, pa.ArrowException, ValueError, KeyError)
"""What a file that is torn, or no longer the one it was, may raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfPart:
    """One file of a shelf."""

    file: StoredFile
    """File of the rows."""
    starts: tuple[int, ...]
    """First row of each row group, counted in the shelf, and one past the last row."""

    def check(self, opened: pq.ParquetFile) -> None:
        """Raise ValueError if the file is no longer the one that was indexed."""
        if opened.metadata.num_rows != self.starts[-1] - self.starts[0]:
            raise ValueError("it was written again just now; ask once more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """One stored step and its short columns."""

    parts: tuple[ShelfPart, ...]
    """Files of the step, in the order of its rows: one for each rank that stored a part of it."""
    kind: str
    """`train` or `eval/NAME`, read from its folder."""
    step: int
    """Step in the names of its files."""
    index: pa.Table
    """Short columns, with `kind`, `step`, `shelf` (a running number) and `row` in the shelf."""

    @property
    def rows(self) -> int:
        """Number of rows in all parts."""
        return self.parts[-1].starts[-1]


def make_shelf(
    files: Sequence[StoredFile], number: int, *, damaged: Callable[[Path, Exception], object]
) -> Shelf | None:
    """The shelf of a step, with a running number; None where one of its files is damaged.

    Args:
        files: of the step, in the order of its rows.
        number: as the column `shelf` gives it.
        damaged: called with the file that cannot be read, and the reason.
    """
    of_path = _kind_and_step(files[0].path)
    if of_path is None:
        return None
    parts: list[ShelfPart] = []
    tables: list[pa.Table] = []
    begin = 0
    for file in files:
        try:
            with open_parquet(file.path, verify=False) as parquet:
                footer = parquet.metadata
                counts = [footer.row_group(g).num_rows for g in range(footer.num_row_groups)]
                short = parquet.read(columns=_SHORT.names, use_threads=False)
                short = short.select(_SHORT.names).replace_schema_metadata(None).cast(_SHORT)
        except DAMAGE as error:
            damaged(file.path, error)
            return None
        starts = (begin, *(begin + np.cumsum(counts)).tolist())
        parts.append(ShelfPart(file=file, starts=starts))
        tables.append(short)
        begin = starts[-1]
    kind, step = of_path
    index = (
        pa.concat_tables(tables)
        .append_column("kind", pa.repeat(pa.scalar(kind, pa.string()), begin))
        .append_column("step", pa.repeat(pa.scalar(step, pa.int64()), begin))
        .append_column("shelf", pa.repeat(pa.scalar(number, pa.int64()), begin))
        .append_column("row", pa.array(np.arange(begin)))
    )
    return Shelf(parts=tuple(parts), kind=kind, step=step, index=index)


def _kind_and_step(path: Path) -> tuple[str, int] | None:
    """Kind and step of a file, read from its path."""
    step = step_of(path)
    if step is None or step > _LAST_STEP:
        return None
    folder = path.parent
    if folder.name == "train" and folder.parent.name == "trajectories":
        return "train", step
    return f"eval/{printable(unquote(folder.name, errors='replace'))}", step
