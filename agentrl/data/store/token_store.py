"""The trainer's numbers of every trained token, on disk: one parquet file per step and rank.

    DIRECTORY/step_000012.rank-0.parquet

Ranks write without a lock, each its own file. A file appears whole; one that is torn, of another
make or of a newer schema is skipped with one warning, as trajectories are. Any parquet reader can
look: one row per row of the batch, sorted by rollout, and one list per column with a number for
each response position. To stay near two bytes a token, log-probabilities stand relative to what
they are near, and every number is rounded:

column              holds                                rounded to
old_log_probs       the number                           a multiple of 2**-13 nats
log_ratio           log_probs - old_log_probs            a multiple of 2**-13 nats
ref_log_ratio       log_probs - ref_log_probs, or NULL   a multiple of 2**-13 nats
entropy             the number                           a multiple of 2**-9 nats
advantages          the number                           float32
correction          the number, 1 where not trained      10 significant bits
loss                the number                           10 significant bits
trained, clip       the number                           exact

A log-probability is off by at most 2**-14 (6e-5), which is a relative error of 6e-5 of the
probability itself; an entropy by 1e-3 nats; the others by 1 part in 1024.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.data.store.atomic import atomic_file
from agentrl.data.store.bounds import open_parquet, why_not_read
from agentrl.data.store.columns import escape, why_foreign
from agentrl.data.store.parquet_writer import write_parquet
from agentrl.data.store.token_columns import (
    TOKENS_SCHEMA,
    TOKENS_VERSION,
    decode_tokens,
    encode_tokens,
)
from agentrl.errors import DataError
from agentrl.machine.inside import within
from agentrl.types import TrainedTokens

logger = logging.getLogger(__name__)

_FILE = re.compile(r"step_(\d{6,})\.rank-(\d+)\.parquet")
_VERSION_KEY = "agentrl.tokens_version"
_NUMBERS = [
    f"{name}.list.element"
    for name in ("old_log_probs", "log_ratio", "ref_log_ratio", "entropy", "correction")
]
"""Columns of numbers that rounding leaves few bytes of."""
_GROUP_TOKENS = 2**17
"""Response positions of one row group: little enough to read in milliseconds for one row of it."""


class TokenStore:
    """Writes and reads what the trainer made of the tokens of a run.

    Example:
        >>> store = TokenStore(Path("runs/my-run/tokens"))
        >>> rows = store.read(12, "task-3/0")
    """

    def __init__(self, directory: Path) -> None:
        """A store in `directory`, which is made on the first write."""
        self.directory = Path(directory)
        self._warned: set[Path] = set()

    def write(
        self, step: int, rank: int, rows: Sequence[TrainedTokens], *, ranks: int | None = None
    ) -> Path:
        """Store what one rank computed in a step; replaces what it stored for it before.

        Args:
            step: not negative.
            rank: of the trainer.
            rows: in any order.
            ranks: how many ranks there are; then rank 0 removes what further ones left when the
                step was trained before, on more of them. None leaves their files.

        Returns:
            The file.

        Raises:
            DataError: a bad step, arrays of unequal length, a disk that is full. No half file is
                left, and an older file of the same step stays as it was.
        """
        path = self.path(step, rank)
        ordered = sorted(rows, key=_order)
        tables = (encode_tokens(step, chunk) for chunk in _chunks(ordered))
        metadata = {_VERSION_KEY: str(TOKENS_VERSION)}
        with atomic_file(path) as file:
            write_parquet(file, TOKENS_SCHEMA, tables, split=_NUMBERS, metadata=metadata)
        self._warned.discard(path)
        if rank == 0 and ranks is not None:
            for other, leftover in self._files(step):
                if other >= ranks:
                    leftover.unlink(missing_ok=True)
        return path

    def read(self, step: int, rollout_id: str | None = None) -> list[TrainedTokens]:
        """Rows of a step, or of one rollout of it, by rank and then by rollout.

        Empty when nothing was recorded. Of one rollout only the part of the file is read that
        holds it.
        """
        return [
            row
            for _, path in self._files(step)
            for table in self._load(path, rollout_id)
            for row in decode_tokens(table)
        ]

    def steps(self) -> list[int]:
        """Steps that have a file of any rank, ascending."""
        matches = (_FILE.fullmatch(path.name) for path in self.directory.glob("step_*.parquet"))
        return sorted({int(match[1]) for match in matches if match})

    def path(self, step: int, rank: int) -> Path:
        """The file of one step and rank, whether or not it exists.

        Raises:
            DataError: a negative step or rank.
        """
        if step < 0 or rank < 0:
            raise DataError(f"a step and a rank are not negative, got step {step}, rank {rank}")
        return self.directory / f"step_{step:06d}.rank-{rank}.parquet"

    def _files(self, step: int) -> list[tuple[int, Path]]:
        found = self.directory.glob(f"step_{step:06d}.rank-*.parquet")
        matches = [(_FILE.fullmatch(path.name), path) for path in found]
        # A pipe under the name of a file would make its reader wait for ever.
        return sorted((int(match[2]), path) for match, path in matches if match and path.is_file())

    def _load(self, path: Path, rollout_id: str | None) -> list[pa.Table]:
        try:
            with open_parquet(within(self.directory, path)) as file:
                reason = why_unreadable(file)
                if not reason:
                    return list(_tables(file, rollout_id))
        except FileNotFoundError:
            # The file of a run that was cleared away while we were looking.
            return []
        except (OSError, pa.ArrowException) as error:
            reason = why_not_read(error)
        if path not in self._warned:
            self._warned.add(path)
            logger.warning("skipping %s: %s", path, reason)
        return []


def _order(row: TrainedTokens) -> tuple[str, str, int]:
    return row.group_id, row.rollout_id, row.row_index


def _chunks(rows: Sequence[TrainedTokens]) -> Iterator[list[TrainedTokens]]:
    chunk: list[TrainedTokens] = []
    size = 0
    for row in rows:
        if chunk and size + len(row.trained) > _GROUP_TOKENS:
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += len(row.trained)
    if chunk:
        yield chunk


def why_unreadable(file: pq.ParquetFile) -> str:
    """Why a well-formed parquet file is not one of ours; empty if it is."""
    return why_foreign(
        file, "token", key=_VERSION_KEY, latest=TOKENS_VERSION, needed=TOKENS_SCHEMA.names
    )


def _tables(file: pq.ParquetFile, rollout_id: str | None) -> Iterator[pa.Table]:
    wanted = None if rollout_id is None else escape(rollout_id)
    for group in range(file.num_row_groups):
        if wanted is None:
            yield file.read_row_group(group).select(TOKENS_SCHEMA.names)
            continue
        ids = file.read_row_group(group, columns=["rollout_id"]).column(0).to_pylist()
        where = [index for index, name in enumerate(ids) if name == wanted]
        if where:
            yield file.read_row_group(group).select(TOKENS_SCHEMA.names).take(where)
