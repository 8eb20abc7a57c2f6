"""Backends that tests of pools can see into: real supervisors that are counted, and sandboxes of
nothing but a dictionary, where a test has to stop a start in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl_sandboxes import UsernsBackend
from agentrl_sandboxes.pool.backend import PooledBackend

from agentrl.errors import SandboxError, SandboxUnavailable
from agentrl.sandbox import ExecResult, Isolation, Outcome, Probe, Sandbox, SandboxBackend, Snapshot


def supervisors() -> list[int]:
    """Sandboxes of this process that are alive, as process ids, the oldest first."""
    parents = [pid for pid in _children(os.getpid()) if b"unshare" in _command(pid)]
    return [child for pid in parents for child in _children(pid)]


async def kill_supervisor(pid: int) -> None:
    """As the kernel would when memory runs out."""
    os.kill(pid, signal.SIGKILL)
    while _command(pid):
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)


def _children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def _command(pid: int) -> bytes:
    """Words of a process; none of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


class Counted(UsernsBackend):
    """Real sandboxes; counts what was made."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    async def create(self, *args: Any, **options: Any) -> Sandbox:
        self.made += 1
        return await super().create(*args, **options)


class InMemory(SandboxBackend):
    """Sandboxes without programs, with a start that a test controls."""

    name = "in-memory"

    def __init__(self, start: Callable[[int], Any] | None = None) -> None:
        self.alive: set[NoPrograms] = set()
        self.made = self.starting = self.most_starting = 0
        self._start = start

    async def probe(self) -> Probe:
        return Probe(available=True, isolation=Isolation.WEAK, detail="")

    async def create(self, limits: Any, snapshot: Any = None, *, image: str = "") -> Sandbox:
        self.made += 1
        if image == "missing":
            raise SandboxUnavailable("no such image")
        self.starting += 1
        self.most_starting = max(self.most_starting, self.starting)
        try:
            if self._start is not None:
                await self._start(self.made)
            sandbox = NoPrograms(self, limits, dict(snapshot.files) if snapshot else {})
            self.alive.add(sandbox)
            return sandbox
        finally:
            self.starting -= 1

    async def close(self) -> None:
        self.alive.clear()


class Kept(Snapshot):
    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.size_bytes = sum(map(len, files.values()))
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class NoPrograms(Sandbox):
    """Files only; `exec` waits for so many seconds."""

    workdir = "/"

    def __init__(self, backend: InMemory, limits: Any, files: dict[str, bytes]) -> None:
        self.limits = limits
        self.files = files
        self._backend = backend

    async def exec(self, command: Any, **options: Any) -> ExecResult:
        with contextlib.suppress(ValueError):
            await asyncio.sleep(float(command[0]))
        return ExecResult(outcome=Outcome.OK, exit_code=0, stdout="", stderr="", duration_s=0.0)

    async def read_file(self, path: str, *, max_bytes: int = 2**20) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    async def write_file(self, path: str, data: bytes) -> None:
        await asyncio.sleep(0)
        self.files[path] = data

    async def upload(self, source: Path, target: str) -> None:
        raise SandboxError("no uploads here")

    async def snapshot(self) -> Snapshot:
        await asyncio.sleep(0)
        return Kept(dict(self.files))

    async def close(self) -> None:
        await asyncio.sleep(0)
        self._backend.alive.discard(self)


async def nothing_left(pool: PooledBackend, inner: InMemory) -> None:
    """No sandbox is alive, no slot is taken, and no task of the pool goes on."""

    def left() -> set[object]:
        return {*inner.alive, *asyncio.all_tasks()} - {asyncio.current_task()}

    for _ in range(24_000):
        if not left():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(left())
