"""A sandbox for tests: a subprocess with a time limit. It isolates nothing and fails on demand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, Outcome, Process, Sandbox, SandboxLimits, SandboxSpec


class LocalSandbox(Sandbox):
    """Counts the programs it runs and raises SandboxError while `broken`."""

    def __init__(self, *, wall_s: float = 10.0, broken: bool = False) -> None:
        self.limits = SandboxLimits(wall_s=wall_s)
        self.execs = 0
        self.closed = False
        self.broken = broken
        self._folder = tempfile.TemporaryDirectory()
        self._running: set[asyncio.subprocess.Process] = set()
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
        self._running.add(process)
        if self.closed:
            process.kill()
        try:
            out, err = await asyncio.wait_for(process.communicate(stdin), timeout_s)
        except TimeoutError:
            process.kill()
            out, err = await process.communicate()
            outcome = Outcome.TIMEOUT
        finally:
            self._running.discard(process)
        return ExecResult(
            outcome=outcome or (Outcome.NONZERO if process.returncode else Outcome.OK),
            exit_code=process.returncode,
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
            duration_s=time.monotonic() - started,
        )

    async def start(self, command, *, cwd=None, env=None):
        if self.broken or self.closed:
            raise SandboxError("the sandbox is broken or closed")
        self.execs += 1
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self.workdir,
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
        )
        return LocalProcess(process)

    async def read_file(self, path, *, max_bytes=2**20):
        return (Path(self.workdir) / path).read_bytes()

    async def write_file(self, path, data):
        (Path(self.workdir) / path).write_bytes(data)

    async def upload(self, source, target):
        raise SandboxError("not offered by this fake")

    async def snapshot(self):
        raise SandboxError("not offered by this fake")

    async def reset(self):
        shutil.rmtree(self.workdir)
        Path(self.workdir).mkdir()

    async def close(self):
        self.closed = True
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        self._folder.cleanup()


class LocalProcess(Process):
    """A program that stays, as a subprocess."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def write(self, data):
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            await self.process.stdin.drain()
        except ConnectionError as error:
            raise BrokenPipeError from error

    async def read(self, *, timeout_s):
        assert self.process.stdout is not None
        return await asyncio.wait_for(self.process.stdout.read(2**16), timeout_s)

    async def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    async def close(self):
        ended = self.process.returncode
        if ended is None:
            # Only a moment, for a program whose output has ended.
            with contextlib.suppress(TimeoutError):
                ended = await asyncio.wait_for(self.process.wait(), 0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        return ended


class LocalSandboxes:
    """Makes LocalSandboxes for an environment, and knows how many programs ran in them."""

    def __init__(self, *, broken: bool = False) -> None:
        self.made: list[LocalSandbox] = []
        self._broken = broken

    @property
    def execs(self) -> int:
        return sum(sandbox.execs for sandbox in self.made)

    async def new(self, spec: SandboxSpec | None = None) -> Sandbox:
        self.made.append(LocalSandbox(broken=self._broken))
        return self.made[-1]

    async def close(self) -> None:
        for sandbox in self.made:
            await sandbox.close()
