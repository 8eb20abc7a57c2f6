"""Finds the runs below some folders, names them, and finds which are still going on.

Nothing here writes or takes a lock: a run that is just starting must not find its lock taken by
somebody who only looks.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentrl.data.run.paths import RunPaths
from agentrl.data.run.read import is_run, read_object
from agentrl.errors import RunError, UntrustedFile

RunState = Literal["running", "paused", "finished", "stopped"]

_DEPTH = 4
_MOST_RUNS = 1000
_FRESH_S = 300.0
"""A run of another machine that wrote something within this time counts as running."""
_OWNER = re.compile(r"process (\d+) on (.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    """A run directory and its id in the inspector."""

    id: str
    """Stable while the inspector runs, unique, printable."""
    path: Path
    """Absolute path of the run."""

    @property
    def name(self) -> str:
        """Name of the folder, as text that can be printed."""
        return printable(self.path.name)


def find_runs(roots: Sequence[Path]) -> list[FoundRun]:
    """The runs at or below `roots`, in the order of the roots and then by path.

    Args:
        roots: run directories, or folders that hold some, up to four levels deep.

    Raises:
        RunError: a root is no directory.
    """
    found: dict[Path, str] = {}
    for root in roots:
        if not root.is_dir():
            what = "is not a directory" if root.exists() else "does not exist"
            raise RunError(
                f"{printable(str(root))} {what}; expected a run directory, or a folder "
                "of them, as in runs/"
            )
        top = root.resolve()
        for path in _below(top, _DEPTH):
            if len(found) < _MOST_RUNS:
                name = top.name if path == top else path.relative_to(top).as_posix()
                found.setdefault(path, printable(name))
    taken: set[str] = set()
    runs: list[FoundRun] = []
    for path, name in found.items():
        unique, number = name, 2
        while unique in taken:
            unique, number = f"{name}#{number}", number + 1
        taken.add(unique)
        runs.append(FoundRun(id=unique, path=path))
    return runs


def run_state(path: Path) -> RunState:
    """State of a run: it goes on, waits for an answer, ended by itself, or was ended.

    Who writes a run holds a lock on its `.lock`, and the system says who holds which. For a run
    of another machine the time of its last line has to do.
    """
    with contextlib.suppress(OSError):
        paths = RunPaths(path)
        lock = paths.lock_file
        status = lock.stat()
        owner = _OWNER.match(_head(lock))
        if _held(status, owner[1] if owner else ""):
            return "running" if pause_of(path) is None else "paused"
        elsewhere = owner is not None and owner[2].strip() != platform.node()
        if elsewhere and not paths.result_file.exists():
            written = max(map(_changed, (paths.metrics_file, paths.log_file, lock)))
            if pause_of(path) is not None:
                return "paused"
            if time.time() - written < _FRESH_S:
                return "running"
    with contextlib.suppress(UntrustedFile):
        paths = RunPaths(path)
        if paths.result_file.exists() or paths.evaluation_file.exists():
            return "finished"
    return "stopped"


def pause_of(path: Path) -> tuple[int, str] | None:
    """The step after which a run waits for an answer, and the rule that paused it; None if none.

    Also of a run whose process has ended meanwhile: `--resume` pauses it again.
    """
    found = read_object(RunPaths(path).control_file)
    if not found or found.get("state") != "paused":
        return None
    step, why = found.get("step"), found.get("why")
    return (step if isinstance(step, int) else 0), printable(str(why or "a rule"))


def printable(text: str) -> str:
    """A path as text that JSON and a terminal can carry: bytes that are no UTF-8 as escapes."""
    return os.fsencode(text).decode("utf-8", errors="backslashreplace")


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if is_run(folder):
        yield folder
        return
    if depth == 0:
        return
    entries: list[Path] = []
    with contextlib.suppress(OSError):
        entries = sorted(folder.iterdir())
    for entry in entries:
        # One folder that we may not look into does not hide those beside it.
        if _is_folder(entry):
            yield from _below(entry, depth - 1)


def _is_folder(entry: Path) -> bool:
    with contextlib.suppress(OSError):
        return entry.is_dir() and not entry.is_symlink() and not entry.name.startswith(".")
    return False


def _held(file: os.stat_result, owner: str) -> bool:
    """Whether anybody holds a lock on the file; false where the system does not report it.

    Layered file systems report another device than the file's own, and then the owner has to fit.
    """
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if len(words) < 6 or words[1] != "FLOCK":
                continue
            where, _, inode = words[5].rpartition(":")
            if inode == str(file.st_ino) and (where == device or words[4] == owner):
                return True
    return False


def _head(path: Path) -> str:
    if not path.is_file():  # a pipe would make us wait for ever
        return ""
    with path.open("rb") as file:
        return file.read(200).decode(errors="replace")


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
