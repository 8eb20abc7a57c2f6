"""The findings so far, kept so that a run that was killed goes on where it stopped.

One file per library and test environment, one line per finding, added and synced as it is made.
Findings are named by what was tried, not by when, so they hold for every seed and count.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, DataError


class MakeJournal:
    """Findings by name, on disk."""

    def __init__(self, path: Path) -> None:
        """Read what is there; a last line that a kill truncated is dropped."""
        self._path = path
        self._found: dict[str, Any] = {}
        whole = 0
        data = path.read_bytes() if path.exists() else b""
        for line in data.splitlines(keepends=True):
            try:
                key, value = json.loads(line)
            except (ValueError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            self._found[key] = value
            whole += len(line)
        if whole < len(data):
            os.truncate(path, whole)

    def get(self, key: str) -> Any:
        """A finding, or None."""
        return self._found.get(key)

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Append a finding to the file.

        Raises:
            DataError: it cannot be written.
        """
        self._found[key] = value
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(json.dumps([key, value]).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DataError(
                f"cannot write {self._path}: {error.strerror or error}; free some space and run "
                "the same command again, it goes on from here"
            ) from error


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold a folder against a second maker; the kernel releases it when this process dies.

    Raises:
        ConfigError: another process holds it, or it is no folder that can be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = (folder / ".lock").open("a+")
    except OSError as error:
        raise ConfigError(
            f"{folder}: {error.strerror or error}; expected a folder that can be written, or a "
            "place where one can be made"
        ) from error
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise ConfigError(
                f"{folder}: process {lock.read().strip() or 'unknown'} makes tasks there; wait for "
                "it, or give another --out"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
