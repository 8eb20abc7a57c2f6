"""Processes that were started below this one, and an end to all of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.02


def adopt_orphans() -> None:
    """Become the parent of whatever loses its parent below this process, where Linux allows it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, where Linux allows it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(option, value, 0, 0, 0)


def end_offspring(patience_s: float = 5.0) -> None:
    """Kill and collect all children, with all that is below them.

    Args:
        patience_s: after which the rest is left: what forks faster than it is killed, what may not
            be killed, what hangs in the kernel.
    """
    deadline = time.monotonic() + patience_s
    while left := children_of(os.getpid()):
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        ended = [process for process in left if _collected(process)]
        if time.monotonic() > deadline:
            return
        if not ended:
            time.sleep(_TICK_S)


def _collected(process: int) -> bool:
    try:
        return os.waitpid(process, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def children_of(process: int) -> set[int]:
    """Process ids; none where there is no /proc."""
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold anything, blanks too.
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it has just ended
        if parent == process:
            found.add(int(entry.parent.name))
    return found
