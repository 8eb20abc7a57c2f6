"""A command and the tree of processes below it, of which nothing outlives the parent.

    python tree.py PARENT_PID GRACE_S scratch|shared COMMAND...     stdin: a pipe of the parent

A vLLM server is several processes, and only the first is a child of the one that started it; the
code of an environment may start anything. This program stands between: it makes itself the parent
of every orphan below it, and it ends the whole tree as soon as the command ends, the parent closes
the pipe, the parent is gone (`kill -9` closes the pipe, but a forked sibling may hold a copy of
it), or SIGTERM arrives. SIGTERM goes to the command first; what is left after GRACE_S gets SIGKILL.
If this process itself is killed, the kernel sends the command a SIGTERM. It ends as its command
did.

With `scratch` the tree has a temporary folder for itself, and it is removed after the last process
of the tree, with what the tree has left in /dev/shm (`scratch.py`). That is housekeeping: what goes
wrong with it is printed, and neither keeps a command from its start nor ends it. Whatever else goes
wrong here, the tree is ended.

Run as a file, by the standard library alone, so that it starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from agentrl.machine.processes.scratch import ScratchFolder

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.25
_SWEEP_S = 3.0
"""Orphans have so long to end by themselves."""
_MARGIN_S = 5.0
"""For a loaded machine."""
_printed: set[str] = set()
_T = TypeVar("_T")


def command(grace_s: float, *, scratch: bool = False) -> list[str]:
    """The words before a command that this program is to run; its stdin must be a pipe.

    Args:
        grace_s: seconds between SIGTERM and SIGKILL.
        scratch: gives the tree a temporary folder of its own, removed when the tree has ended.
    """
    folder = "scratch" if scratch else "shared"
    return [sys.executable, "-I", str(Path(__file__)), str(os.getpid()), str(grace_s), folder]


def longest_end_s(grace_s: float) -> float:
    """Seconds after which this program has ended whatever it can, however deaf the tree is."""
    return grace_s + 3 * _SWEEP_S + _MARGIN_S


def children_of(process: int) -> set[int]:
    """Process ids of the living children; none where there is no /proc."""
    return {pid for pid, parent in _parents().items() if parent == process}


def descendants_of(process: int) -> list[int]:
    """Process ids of the living children, of theirs and so on."""
    parents = _parents()
    found = [process]
    for ancestor in found:
        found += [pid for pid, parent in parents.items() if parent == ancestor]
    return found[1:]


def _parents() -> dict[int, int]:
    """The parent of each living process."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # pid (name) state parent ...; the name may hold anything, parentheses too.
            state, parent = entry.read_bytes().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it has just ended
        if state != b"Z":
            parents[int(entry.parent.name)] = int(parent)
    return parents


def end_children() -> None:
    """End and reap all children of this process, and theirs where it adopts orphans.

    SIGTERM first: the tracker that removes shared memory ignores it, and does its work as soon as
    the others are gone.
    """
    terminated: set[int] = set()
    started = time.monotonic()
    killed: float | None = None
    while _reap():
        now = time.monotonic()
        if killed is not None and now - killed > _SWEEP_S:
            return  # not even SIGKILL ends a process stuck in the kernel
        # However long this process stood still itself, SIGKILL comes before it gives up.
        if killed is None and now - started > _SWEEP_S:
            killed = now
        for pid in children_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if killed is not None:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in terminated:
                    terminated.add(pid)
                    os.kill(pid, signal.SIGTERM)
        time.sleep(0.02)


def _reap() -> bool:
    """Whether there are children that have not ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def main(words: list[str]) -> None:
    """Run the command to its end, or end it."""
    parent, grace_s = int(words[0]), float(words[1])
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wanted = True

    def stop(number: int, frame: object) -> None:
        nonlocal wanted
        wanted = False

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    scratch = _make_scratch() if words[2] == "scratch" else None
    child: subprocess.Popen[bytes] | None = None
    try:
        child = subprocess.Popen(
            words[3:],
            env=None if scratch is None else {**os.environ, "TMPDIR": str(scratch.path)},
            stdin=subprocess.DEVNULL,
            close_fds=False,  # the channel of a `ChildProcess` is one of them
            preexec_fn=lambda: libc.prctl(_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0),
        )
        while wanted and child.poll() is None and os.getppid() == parent:
            readable, _, _ = select.select([0], [], [], _TICK_S)
            if readable and not os.read(0, 1):
                break
            _look(scratch)
        _look(scratch)
    finally:
        if child is not None:
            _end(child, grace_s)
        _look(scratch)
        end_children()
        if scratch is not None:
            _housekeep(scratch.remove)
    _end_like(None if child is None else child.returncode)


def _end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.kill()
        child.wait(_SWEEP_S)


def _make_scratch() -> ScratchFolder | None:
    """The folder of the tree; None if there can be none."""
    # Run as a file and isolated, this program finds no modules but those of the library.
    sys.path.append(str(Path(__file__).parent))
    module = importlib.import_module("scratch")
    _housekeep(module.sweep)
    return _housekeep(module.ScratchFolder)


def _look(scratch: ScratchFolder | None) -> None:
    if scratch is not None:
        _housekeep(lambda: scratch.look(lambda: descendants_of(os.getpid())))


def _housekeep(step: Callable[[], _T]) -> _T | None:
    """Do a step that no command may fail for; prints what goes wrong, the same only once."""
    try:
        return step()
    except Exception as error:  # whatever a folder of another tree, /proc or /dev/shm may hold
        text = f"the supervisor of a process tree cannot clean up: {error!r}"
        if text not in _printed:
            _printed.add(text)
            with contextlib.suppress(OSError):  # who read it may be gone
                sys.stderr.write(f"{text}\n")
                sys.stderr.flush()
        return None


def _end_like(status: int | None) -> NoReturn:
    """End with the status of a process, be it an exit status or a signal."""
    if status is not None and status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(1 if status is None else status)


if __name__ == "__main__":
    main(sys.argv[1:])
