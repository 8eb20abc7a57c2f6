"""A sandbox for tests: a subprocess with a time limit. It isolates nothing and fails on demand."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, Outcome, Sandbox, SandboxLimits


class LocalSandbox(Sandbox):
    """Counts its `exec` calls and raises SandboxError while `broken`."""

    def __init__(self, *, wall_s: float = 10.0, broken: bool = False) -> None:
        self.limits = SandboxLimits(wall_s=wall_s)
        self.execs = 0
        self.closed = False
        self.broken = broken
        self._folder = tempfile.TemporaryDirectory()
        self.workdir = self._folder.name

    async def exec(self, command, *, stdin=b"", timeout_s=None, cwd=None, env=None):
        if self.broken or self.closed:
            raise SandboxError("the sandbox is broken or closed")
        self.execs += 1
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.workdir,
            env={"PATH": "/usr/bin:/bin"},
        )
        outcome = None
        try:
            out, err = await asyncio.wait_for(process.communicate(stdin), timeout_s)
        except TimeoutError:
            process.kill()
            out, err = await process.communicate()
            outcome = Outcome.TIMEOUT
        return ExecResult(
            outcome=outcome or (Outcome.NONZERO if process.returncode else Outcome.OK),
            exit_code=process.returncode,
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
            duration_s=time.monotonic() - started,
        )

    async def read_file(self, path, *, max_bytes=2**20):
        return (Path(self.workdir) / path).read_bytes()

    async def write_file(self, path, data):
        (Path(self.workdir) / path).write_bytes(data)

    async def upload(self, source, target):
        raise SandboxError("not offered by this fake")

    async def snapshot(self):
        raise SandboxError("not offered by this fake")

    async def close(self):
        self.closed = True
        self._folder.cleanup()
