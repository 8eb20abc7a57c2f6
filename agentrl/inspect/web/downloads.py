"""Rollouts as files for the browser to save."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
from starlette.responses import Response, StreamingResponse

from agentrl.data import StoredTrajectory, TrajectoryStore
from agentrl.data.store.columns import unescape
from agentrl.errors import RunError, choices
from agentrl.inspect.export.files import export_pieces
from agentrl.inspect.export.formats import ExportFormat
from agentrl.inspect.pages.groups import find_rollout
from agentrl.inspect.read.reader import RunReader

_SUFFIX = {"atif": "atif.jsonl"}


def export_response(
    reader: RunReader, kind: str, step: int, rollout: str | None, format: str
) -> Response:
    """A rollout, or all of a step, as a download.

    Args:
        reader: of the run.
        kind: `train` or `eval/NAME`.
        step: of the file.
        rollout: id as stored; None exports the step.
        format: an `ExportFormat`.

    Raises:
        ValueError: no such format.
        RunError: no such kind, step or rollout, or its file is damaged.
    """
    if format not in list(ExportFormat):
        raise ValueError(f"format: {choices(format, ExportFormat)}")
    reader.rows.refresh()
    shelf = reader.rows.shelf(kind, step)
    if rollout is not None:
        find_rollout(shelf, rollout)
    rows = _rows(reader, kind, step, rollout)
    pieces = export_pieces(ExportFormat(format), rows, reader)
    name = "-".join(part for part in (reader.run.name, kind, f"step-{step}", rollout) if part)
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:150]
    suffix = _SUFFIX.get(format, format)
    return StreamingResponse(
        pieces,
        media_type="application/octet-stream",
        headers={
            "content-disposition": f'attachment; filename="{safe}.{suffix}"',
            "cache-control": "no-store",
        },
    )


def _rows(
    reader: RunReader, kind: str, step: int, rollout: str | None
) -> Iterator[StoredTrajectory]:
    store = TrajectoryStore(reader.paths.trajectories)
    ids = None if rollout is None else [unescape(rollout)]
    try:
        found = list(store.read(kind, step=step, rollout_ids=ids))
    except (ValueError, KeyError, TypeError, OSError, pa.ArrowException) as error:
        raise RunError(f"step {step} of {kind} cannot be exported: {error}") from error
    if not found:
        raise RunError(f"step {step} of {kind} cannot be exported: its file is damaged")
    return iter(found)
