"""One process at a time for what a command writes."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import DataError


@contextmanager
def owned(out: Path) -> Iterator[None]:
    """Keep other processes from writing to `out`; the lock goes with the process.

    Raises:
        DataError: another one writes there, or nobody may.
    """
    path = out.with_name(f".{out.name}.lock")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a+")
    except OSError as error:
        raise DataError(
            f"cannot write {out}: {error.strerror or error}; choose another --out"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "another process"
            raise DataError(
                f"{out} is being written by {owner}; wait for it, or choose another --out"
            ) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {platform.node()}")
        lock.flush()
        # The file stays: to unlink it would let two processes hold locks of different files.
        yield
