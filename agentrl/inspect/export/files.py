"""Stored trajectories as files for other programs and other people; `formats` says which."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.data import StoredTrajectory, TokenStore
from agentrl.data.store.atomic import atomic_file
from agentrl.data.store.trajectory_store import write_rows
from agentrl.inspect.export.atif import atif_document
from agentrl.inspect.export.formats import ExportFormat
from agentrl.inspect.export.html import html_page
from agentrl.inspect.query.result import finite
from agentrl.inspect.read.reader import RunReader
from agentrl.types import TrainedTokens

_BLOCK_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What an export says of the run that the rollouts come from."""

    name: str
    """Of the run directory."""
    model: str = ""
    """The model that training began with; empty where the run does not say."""
    version: str = ""
    """The agentrl that recorded it; empty where the run does not say."""
    pieces: Callable[[Sequence[int]], list[str]] | None = None
    """Token ids to the text of each, where a checkpoint has the tokenizer."""
    tokens: TokenStore | None = None
    """What the trainer made of the tokens, where the run recorded it."""


def export_rollouts(
    output: Path, format: ExportFormat, rows: Iterable[StoredTrajectory], facts: RunFacts
) -> int:
    """Write rows into one file, whole or not at all.

    Args:
        output: the file; one that exists is replaced.
        format: how.
        rows: those of one step stand together, as a store gives them.
        facts: of their run.

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
        for piece in export_pieces(format, counted(), facts):
            file.write(piece)
    return count


def export_pieces(
    format: ExportFormat, rows: Iterable[StoredTrajectory], facts: RunFacts
) -> Iterator[bytes]:
    """The bytes of such a file, piece by piece, for whoever sends them elsewhere."""
    if format is ExportFormat.PARQUET:
        with tempfile.TemporaryDirectory(prefix="agentrl-export-") as folder:
            path = Path(folder) / "step_000000.parquet"
            write_rows(path, rows)
            with path.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    yield block
    elif format is ExportFormat.JSONL:
        for stored in rows:
            record = dataclasses.asdict(stored)
            line = {**record.pop("trajectory"), **record}
            yield json.dumps(finite(line)).encode() + b"\n"
    elif format is ExportFormat.ATIF:
        for of_rollout in rollouts(rows):
            document = atif_document(
                of_rollout, run=facts.name, model=facts.model, version=facts.version
            )
            yield json.dumps(document, allow_nan=False).encode() + b"\n"
    else:
        page = html_page(
            rollouts(rows),
            run=facts.name,
            model=facts.model,
            version=facts.version,
            pieces=facts.pieces,
            trained=lambda of_rollout: _trained(facts.tokens, of_rollout),
        )
        for piece in page:
            yield piece.encode(errors="backslashreplace")


def run_facts(reader: RunReader) -> RunFacts:
    """What an export says of a run."""
    identity: Mapping[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, RecursionError):
        path = reader.path / "run.json"
        # A pipe would make us wait for ever.
        found = json.loads(path.read_bytes()) if path.is_file() else None
        identity = found if isinstance(found, dict) else {}
    return RunFacts(
        name=reader.run.name,
        model=str(identity.get("model") or ""),
        version=str(identity.get("agentrl") or ""),
        pieces=reader.pieces(),
        tokens=reader.tokens,
    )


def rollouts(rows: Iterable[StoredTrajectory]) -> Iterator[list[StoredTrajectory]]:
    """Rows by rollout, in the order of `row_index`; those of one step stand together."""
    for _, of_step in itertools.groupby(rows, key=lambda row: (row.kind, row.step)):
        found: dict[str, list[StoredTrajectory]] = {}
        for row in of_step:
            found.setdefault(row.trajectory.rollout_id, []).append(row)
        for members in found.values():
            yield sorted(members, key=lambda row: row.trajectory.row_index)


def _trained(
    tokens: TokenStore | None, rows: Sequence[StoredTrajectory]
) -> dict[int, TrainedTokens]:
    """What the trainer made of each row of a rollout, by `row_index`."""
    first = rows[0]
    if tokens is None or first.kind != "train":
        return {}
    found = tokens.read(first.step, first.trajectory.rollout_id)
    return {row.row_index: row for row in found}
