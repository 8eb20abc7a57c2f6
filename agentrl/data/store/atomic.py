"""A file that is either whole or not there, whatever happens while it is written."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from agentrl.errors import DataError

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
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            # Also on cancellation and Ctrl-C: the half file goes, the exception stays.
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; free some space or mend the "
            "permissions of the folder"
        ) from error


def sync_directory(directory: Path) -> None:
    """Put the names in `directory` on the disk, where the file system can do that."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        # Some network file systems refuse to sync a directory; there is nothing more to do there.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(directory: Path) -> None:
    """Remove what a writer left that was killed before it could clean up."""
    for leftover in directory.glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > _ABANDONED_S:
                leftover.unlink()
