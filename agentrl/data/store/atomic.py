"""A file that is either whole or not there, whatever happens while it is written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from agentrl.errors import DataError
from agentrl.machine.files import replacing

_ABANDONED_S = 3600.0
"""A temporary file this old has lost its writer; no single file takes an hour to write."""


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary neighbour of `path` that takes its place when the block ends well.

    The bytes are on the disk before the name is, and the name before this returns. Two writers of
    one path do not meet: each has its own temporary file, and the last to finish wins.

    Raises:
        DataError: the file cannot be written (disk full, no permission); nothing is left behind.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        with replacing(path) as temporary, temporary.open("xb") as file:
            yield file
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; free some space or mend the "
            "permissions of the folder"
        ) from error


def _sweep(directory: Path) -> None:
    """Remove what a writer left that was killed before it could clean up."""
    for leftover in directory.glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > _ABANDONED_S:
                leftover.unlink()
