"""Runs one command and sees to it that nothing of its tree outlives whoever wanted it.

    python supervisor.py PARENT_PID GRACE_S COMMAND...      stdin: a pipe that the parent holds

A vLLM server is several processes, and only the first is a child of the one that started it. This
process stands between: it makes itself the reaper of every orphan below it, and it ends the whole
tree as soon as the command ends, the parent closes the pipe, the parent is gone (`kill -9` closes
the pipe, but a forked sibling may hold a copy of it), or SIGTERM arrives. SIGTERM goes to the
command first; what is left after GRACE_S gets SIGKILL. If this process itself is killed, the kernel
sends the command a SIGTERM.

Run as a file, by the standard library alone, so that it starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_SET_CHILD_SUBREAPER = 36
_SET_PDEATHSIG = 1
_TICK_S = 0.25
_SWEEP_S = 3.0
"""Orphans have so long to end by themselves."""


def main(words: list[str]) -> int:
    """Run the command to its end, or end it; the exit status is the command's."""
    parent, grace_s, command = int(words[0]), float(words[1]), words[2:]
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wanted = True

    def leave(number: int, frame: object) -> None:
        nonlocal wanted
        wanted = False

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: libc.prctl(_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0),
    )
    while wanted and child.poll() is None and os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], _TICK_S)
        if readable and not os.read(0, 1):
            break
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    _sweep()
    status = child.wait()
    return 128 - status if status < 0 else status


def _sweep() -> None:
    """End what is left below us; those that end leave us their children.

    SIGTERM first: the tracker that removes shared memory ignores it, and does its work as soon as
    the others are gone.
    """
    told: set[int] = set()
    started = time.monotonic()
    while left := _children(os.getpid()):
        waited_s = time.monotonic() - started
        if waited_s > 2 * _SWEEP_S:
            return  # not even SIGKILL ends a process stuck in the kernel
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                if waited_s > _SWEEP_S:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in told:
                    told.add(pid)
                    os.kill(pid, signal.SIGTERM)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
