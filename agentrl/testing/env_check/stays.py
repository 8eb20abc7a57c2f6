"""Counts what an environment leaves behind: tasks, threads, processes, files, open files."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.machine.processes.tree import children_of
from agentrl.testing.env_check.findings import broken
from agentrl.types.finding import Finding

_OWN_THREADS = ("asyncio_", "waitpid-", "user-code")
"""Beginnings of the names of threads that run calls, ours and the user's."""
_CREATES = os.O_CREAT
_NO_FILE = ("anon_inode:", "/dev/", "/proc/", "/sys/")


class _MadeFiles:
    """Notes what this process makes; one hook for all checks, since no hook can be removed."""

    def __init__(self) -> None:
        self._paths: set[str] | None = None
        self._hooked = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        if not self._hooked:
            sys.addaudithook(self._hook)
            self._hooked = True
        self._paths = set()
        try:
            yield
        finally:
            self._paths = None

    def files(self) -> list[str]:
        if any(os.path.lexists(path) for path in self._paths or ()):
            gc.collect()  # a temporary folder in a reference cycle is deleted with it
        return [path for path in self._paths or () if os.path.lexists(path)]

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self._paths is None:
            return
        if event == "open":
            path, _, flags = args
            made = isinstance(flags, int) and bool(flags & _CREATES)
        elif event in ("os.mkdir", "sqlite3.connect"):
            path, made = args[0], True
        elif event in ("os.rename", "os.link", "os.symlink"):
            path, made = args[1], True
        else:
            return
        if made and isinstance(path, str | bytes | os.PathLike):
            whole = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - no link is followed
            if not os.path.lexists(whole) and "__pycache__" not in whole:
                self._paths.add(whole)


_made = _MadeFiles()
made_files = _made.noted
"""Within it, `Belongings.now` sees the files that this process makes."""


def open_files() -> frozenset[tuple[str, str]]:
    """Number and name of every file, socket and pipe that this process holds open."""
    found: set[tuple[str, str]] = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed since, as the one of this listing
            name = str(entry.readlink())
            if not name.startswith(_NO_FILE):
                found.add((entry.name, name))
    return frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Belongings:
    """Tasks, threads and child processes that a process holds at one moment."""

    tasks: frozenset[asyncio.Task[Any]]
    """Unfinished asyncio tasks."""
    threads: frozenset[threading.Thread]
    """Living threads, without those that run calls of user code."""
    children: frozenset[int]
    """Process ids of living children."""
    files: frozenset[str] = frozenset()
    """Files and folders that were made within `made_files`, and are there."""

    @classmethod
    def now(cls) -> Belongings:
        """Count; must be called from inside the event loop."""
        return cls(
            tasks=frozenset(asyncio.all_tasks()),
            threads=frozenset(
                t for t in threading.enumerate() if not t.name.startswith(_OWN_THREADS)
            ),
            children=frozenset(children_of(os.getpid())),
            files=frozenset(_made.files()),
        )

    def leaked_since(self, before: Belongings) -> Iterator[Finding]:
        """A finding for each kind that has grown."""
        if tasks := self.tasks - before.tasks:
            names = ", ".join(sorted(_coroutine_name(task) for task in tasks)[:3])
            yield broken("E404", f"{len(tasks)} asyncio tasks still run: {names}")
        if threads := self.threads - before.threads:
            names = ", ".join(sorted(thread.name for thread in threads)[:3])
            yield broken("E405", f"{len(threads)} threads still run: {names}")
        if children := self.children - before.children:
            yield broken("E406", f"{len(children)} child processes still run")
        if files := self.files - before.files:
            names = ", ".join(sorted(files)[:3])
            yield broken("E408", f"{len(files)} files or folders stay, more each time: {names}")


async def clear_away(before: Belongings) -> None:
    """End the tasks and child processes that came after `before`; threads cannot be ended."""
    now = Belongings.now()
    for task in now.tasks - before.tasks:
        task.cancel()
    for pid in now.children - before.children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(0)


def _coroutine_name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", task.get_name())
