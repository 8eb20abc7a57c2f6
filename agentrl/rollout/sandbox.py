"""The one sandbox of a rollout: opened on first use, shared by environment and tools, timed.

The time commands spend inside it is the model's own doing even when an environment started them.
The loop needs that number to tell a slow action from a slow environment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.errors import EnvError, SandboxError
from agentrl.sandbox import ExecResult, Sandbox, SandboxBackend, SandboxLimits, Snapshot


class SharedSandbox:
    """Opens at most one sandbox and closes it."""

    def __init__(
        self, backend: SandboxBackend | None, limits: SandboxLimits, *, open_timeout_s: float
    ) -> None:
        self._backend = backend
        self._limits = limits
        self._open_timeout_s = open_timeout_s
        self._sandbox: _TimedSandbox | None = None
        # Protects `_sandbox` while it is being made: parallel tool calls must get the same one.
        self._opening = asyncio.Lock()

    @property
    def opened(self) -> bool:
        """Whether there is something to close."""
        return self._sandbox is not None

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one command ran, those still running included."""
        return 0.0 if self._sandbox is None else self._sandbox.busy_s()

    async def open(self) -> Sandbox:
        """The sandbox of this rollout.

        Raises:
            EnvError: the run has no sandbox.
            SandboxError: it could not be made in time.
        """
        if self._sandbox is not None:
            return self._sandbox
        if self._backend is None:
            raise EnvError(
                "a sandbox was asked for, but the rollout worker was given no sandbox backend"
            )
        async with self._opening:
            if self._sandbox is None:
                try:
                    async with asyncio.timeout(self._open_timeout_s) as scope:
                        self._sandbox = _TimedSandbox(await self._backend.create(self._limits))
                except TimeoutError:
                    if not scope.expired():
                        raise
                    raise SandboxError(
                        f"sandbox backend {self._backend.name!r} did not open a sandbox in "
                        f"{self._open_timeout_s:g} s"
                    ) from None
        return self._sandbox

    async def close(self) -> None:
        """Close it if it was opened. Idempotent."""
        if self._sandbox is not None:
            await self._sandbox.close()


class _TimedSandbox(Sandbox):
    """Passes everything on and measures `exec`."""

    def __init__(self, inner: Sandbox) -> None:
        self.limits = inner.limits
        self.workdir = inner.workdir
        self._inner = inner
        self._running = 0
        self._since = 0.0
        self._done_s = 0.0

    def busy_s(self) -> float:
        return self._done_s + (time.monotonic() - self._since if self._running else 0.0)

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        if self._running == 0:
            self._since = time.monotonic()
        self._running += 1
        try:
            return await self._inner.exec(
                command, stdin=stdin, timeout_s=timeout_s, cwd=cwd, env=env
            )
        finally:
            self._running -= 1
            if self._running == 0:
                self._done_s += time.monotonic() - self._since

    async def read_file(self, path: str, *, max_bytes: int = 2**20) -> bytes:
        return await self._inner.read_file(path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._inner.write_file(path, data)

    async def upload(self, source: Path, target: str) -> None:
        await self._inner.upload(source, target)

    async def snapshot(self) -> Snapshot:
        return await self._inner.snapshot()

    async def close(self) -> None:
        await self._inner.close()
