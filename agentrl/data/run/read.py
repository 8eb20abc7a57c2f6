"""Reads small files of a run directory that may be growing, copied half, torn or hostile.

Nothing here locks or writes; sizes are bounded, and a pipe under the name of a file is not waited
for. Metrics are read by `agentrl.metrics.read_metrics` under the same rules, trajectories and
tokens by their stores.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.data.run.paths import RunPaths
from agentrl.errors import RunError

_MOST_BYTES = 2**20
"""Read of a file with one object, and of one line; ours are far smaller."""


def is_run(path: Path) -> bool:
    """Return true if a folder looks like a run directory."""
    with contextlib.suppress(OSError):  # we may not look into it
        return any(mark.exists() for mark in RunPaths(path).marks)
    return False


def require_run(path: Path) -> None:
    """Refuse a path that is no run directory.

    Raises:
        RunError: it is no directory, or holds neither metrics nor a config nor trajectories.
    """
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist"
        raise RunError(f"run directory {path} {what}; expected one that agentrl train made")
    if not is_run(path):
        names = ", ".join(mark.name for mark in RunPaths(path).marks)
        raise RunError(
            f"{path} is not a run directory: it has none of {names}; expected a "
            "directory that agentrl train made, as in runs/NAME"
        )


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a small file; empty for anything else."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if path.is_file():  # a pipe would make us wait for ever
            with path.open("rb") as file:
                found = json.loads(file.read(_MOST_BYTES))
            return found if isinstance(found, dict) else {}
    return {}


def read_objects(path: Path, *, last_bytes: int | None = None) -> Iterator[dict[str, Any] | None]:
    """The JSON objects in a file of lines; None for a line that is torn or no object.

    Args:
        path: of the file; nothing comes of one that is missing or cannot be read.
        last_bytes: read only the lines that lie wholly in this much of the end.
    """
    with contextlib.suppress(OSError):
        if not path.is_file():
            return
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size - last_bytes) if last_bytes else 0
            file.seek(start)
            if start:
                file.readline(_MOST_BYTES)
            while line := file.readline(_MOST_BYTES):
                if line.strip():
                    yield _object(line)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
