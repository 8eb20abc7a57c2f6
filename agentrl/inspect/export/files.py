"""Stored trajectories as files for other programs and other people; `formats` lists which."""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentrl.data import StoredTrajectory
from agentrl.data.run.labels import labels_by_rollout
from agentrl.data.store.atomic import atomic_file
from agentrl.data.store.columns import escape
from agentrl.data.store.trajectory_store import write_rows
from agentrl.inspect.export.atif import atif_document
from agentrl.inspect.export.formats import ExportFormat
from agentrl.inspect.export.page import RolloutKey, page_pieces
from agentrl.inspect.query.result import finite
from agentrl.inspect.read.reader import RunReader

_BLOCK_BYTES = 2**20


def export_rollouts(
    output: Path, format: ExportFormat, rows: Iterable[StoredTrajectory], reader: RunReader
) -> int:
    """Write rows into one file, whole or not at all.

    Args:
        output: the file; one that exists is replaced.
        format: how.
        rows: those of one step stand together, as a store gives them.
        reader: of their run.

    Returns:
        How many rows were written.

    Raises:
        DataError: the file cannot be written.
    """
    if format is ExportFormat.PARQUET:
        return write_rows(output, rows)
    count = 0

    def counted() -> Iterator[StoredTrajectory]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    with atomic_file(output) as file:
        for piece in export_pieces(format, counted(), reader):
            file.write(piece)
    return count


def export_pieces(
    format: ExportFormat, rows: Iterable[StoredTrajectory], reader: RunReader
) -> Iterator[bytes]:
    """The bytes of such a file, piece by piece, for a sender."""
    identity = reader.identity()
    model, version = str(identity.get("model") or ""), str(identity.get("agentrl") or "")
    if format is ExportFormat.PARQUET:
        with tempfile.TemporaryDirectory(prefix="agentrl-export-") as folder:
            path = Path(folder) / "step_000000.parquet"
            write_rows(path, rows)
            with path.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    yield block
    elif format is ExportFormat.JSONL:
        given = labels_by_rollout(reader.paths.labels_file)
        for stored in rows:
            record = dataclasses.asdict(stored)
            key = (stored.kind, stored.step, stored.trajectory.rollout_id)
            labels = [dataclasses.asdict(label) for label in given.get(key, ())]
            line = {**record.pop("trajectory"), **record, "labels": labels}
            yield json.dumps(finite(line)).encode() + b"\n"
    elif format is ExportFormat.ATIF:
        for of_rollout in rollouts(rows):
            document = atif_document(of_rollout, run=reader.run.name, model=model, version=version)
            yield json.dumps(document, allow_nan=False).encode() + b"\n"
    else:
        keys = (_key(of_rollout[0]) for of_rollout in rollouts(rows))
        for piece in page_pieces(reader, keys, model=model, version=version):
            yield piece.encode()


def rollouts(rows: Iterable[StoredTrajectory]) -> Iterator[list[StoredTrajectory]]:
    """Rows by rollout, in the order of `row_index`; those of one step stand together."""
    for _, of_step in itertools.groupby(rows, key=lambda row: (row.kind, row.step)):
        found: dict[str, list[StoredTrajectory]] = {}
        for row in of_step:
            found.setdefault(row.trajectory.rollout_id, []).append(row)
        for members in found.values():
            yield sorted(members, key=lambda row: row.trajectory.row_index)


def _key(stored: StoredTrajectory) -> RolloutKey:
    """The key of a rollout in the inspector's answers; names of folders that are no text are
    spelled as there."""
    kind = stored.kind.encode(errors="surrogatepass").decode(errors="replace")
    return RolloutKey(kind=kind, step=stored.step, rollout=escape(stored.trajectory.rollout_id))
