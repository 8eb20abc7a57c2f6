"""The contract of a sandbox for a container without a supervisor."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, Process, Sandbox, SandboxLimits, Snapshot
from agentrl_sandboxes.docker import exec_files as scripts
from agentrl_sandboxes.docker.exec_command import Command
from agentrl_sandboxes.docker.exec_container import WORKDIR, ExecContainer
from agentrl_sandboxes.docker.exec_session import ExecProcess, Inside
from agentrl_sandboxes.host.supervised import command_timeout
from agentrl_sandboxes.host.upload import pack_source


class TarSnapshot(Snapshot):
    """A work directory as a tar archive, in the host's memory."""

    def __init__(self, tree: scripts.Tree) -> None:
        self.tree: scripts.Tree | None = tree
        self.size_bytes = len(tree.packed)

    async def close(self) -> None:
        """Drop it."""
        self.tree = None


class ExecSandbox(Sandbox):
    """A container without a supervisor."""

    def __init__(
        self,
        limits: SandboxLimits,
        container: ExecContainer,
        on_close: Callable[[Sandbox], None],
    ) -> None:
        self.limits = limits
        self.workdir = WORKDIR
        self.container = container
        """For looking at it from outside."""
        self._on_close = on_close
        self._work: set[asyncio.Task[ExecResult]] = set()
        self._closing: asyncio.Task[None] | None = None

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a program; see `Sandbox.exec`."""
        timeout = command_timeout(timeout_s, self.limits)
        argv, variables = self._program(command, cwd, env)
        broom = self.container.broom
        async with self.container.command() as (mark, leave):
            before = await broom.killed()
            stream = await self.container.begin(mark, cwd, argv, variables)
            running = Command(self.limits, stream, broom, before, leave)
            work = asyncio.create_task(running.run(stdin, timeout))
            self._work.add(work)
            try:
                return await work
            except asyncio.CancelledError:
                caller = asyncio.current_task()
                if caller is None or not caller.cancelling():
                    # Not by its caller, so by the end of the sandbox.
                    self.container.check_open()
                raise
            finally:
                self._work.discard(work)
                work.cancel()
                await asyncio.wait([work])
                self.container.drop(stream)

    async def start(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Run a program that stays; see `Sandbox.start`."""
        argv, variables = self._program(command, cwd, env)
        inner = self.container
        mark = await inner.enter()
        try:
            stream = await inner.begin(mark, cwd, argv, variables, stays=True)
            inside = Inside(
                interrupt=lambda pid: inner.broom.interrupt(inner.shown(mark), pid),
                killed=inner.broom.killed,
                reads=lambda stdin: inner.reads(stdin, mark),
                leave=lambda: inner.leave(mark),
                reason=lambda: inner.reason,
            )
            process = ExecProcess(stream, inside)
            await process.begin()
        except BaseException:
            await asyncio.shield(inner.leave(mark))
            raise
        return process

    async def read_file(self, path: str, *, max_bytes: int = 2**20) -> bytes:
        """Read a file; see `Sandbox.read_file`."""
        full = scripts.inner_path(self.workdir, path)
        said = await self._files(scripts.READ, full, str(max_bytes), most=max_bytes)
        scripts.raise_failure(said, path, max_bytes)
        return said.out

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file; see `Sandbox.write_file`."""
        await self._write(path, bytes(data), "")

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file or tree from the host; see `Sandbox.upload`."""
        entries = await asyncio.to_thread(pack_source, source, self.limits.disk_bytes)
        if entries[0][1] == "f":
            await self._write(target, entries[0][3], f"{entries[0][2]:o}")
        else:
            await self._unpack(scripts.pack(entries), target)

    async def download(self, source: str, *, max_bytes: int) -> dict[str, bytes]:
        """Files at or below a path; see `Sandbox.download`. Makes them readable to their owner."""
        full = scripts.inner_path(self.workdir, source)
        # Names and padding come on top; a tree of very many empty files is refused by this, too.
        most = 2 * max_bytes + 2**22
        said = await self._files(scripts.PACK, full, "readable", most=most)
        scripts.raise_failure(said, source, max_bytes)
        return scripts.regular_files(said.out, source, max_bytes)

    async def snapshot(self) -> Snapshot:
        """Freeze the work directory; see `Sandbox.snapshot`."""
        most = 2 * self.limits.disk_bytes + 2**22
        said = await self._files(scripts.PACK, self.workdir, "", most=most)
        scripts.raise_failure(said, ".", self.limits.disk_bytes)
        return TarSnapshot(scripts.pack(scripts.entries_of(said.out, ".")))

    async def fill(self, snapshot: Snapshot) -> None:
        """Lay out a snapshot in the empty work directory."""
        if not isinstance(snapshot, TarSnapshot) or snapshot.tree is None:
            raise SandboxError(
                "sandbox: expected an open snapshot of a sandbox of an image without Python, got "
                f"{type(snapshot).__name__}"
            )
        await self._unpack(snapshot.tree, ".")

    async def close(self) -> None:
        """End it; see `Sandbox.close`."""
        if self._closing is None:
            self.container.reason = self.container.reason or "sandbox: closed"
            self._closing = asyncio.create_task(self._end())
        # Shielded: a cancelled rollout must not leave its sandbox behind.
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        for work in list(self._work):
            work.cancel()
        await self.container.end()
        self._on_close(self)

    def _program(
        self, command: Sequence[str], cwd: str | None, env: Mapping[str, str] | None
    ) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment, checked."""
        self.container.check_open()
        if isinstance(command, str) or not command:
            raise ValueError(f"sandbox exec: expected a list of arguments, got {command!r}")
        merged = {**self.container.env, **(env or {})}
        for text in (*command, cwd or "", *merged, *merged.values()):
            scripts.check_text(text)
        bad = [name for name in merged if not name or "=" in name]
        if bad:
            raise ValueError(f"sandbox exec: not a name of an environment variable: {bad[0]!r}")
        return list(command), merged

    async def _write(self, path: str, data: bytes, mode: str) -> None:
        full = scripts.inner_path(self.workdir, path)
        scripts.raise_failure(await self._files(scripts.WRITE, full, mode, stdin=data), path)

    async def _unpack(self, tree: scripts.Tree, target: str) -> None:
        full = scripts.inner_path(self.workdir, target)
        said = await self._files(scripts.UNPACK, full, *tree.closed, stdin=tree.packed)
        if said.status == 45:
            said = dataclasses.replace(said, err=said.out)
        scripts.raise_failure(said, target)

    async def _files(
        self, script: str, *arguments: str, stdin: bytes = b"", most: int = 2**16
    ) -> scripts.Said:
        """Run a script on files of the work directory."""
        return await self.container.script(script, self.workdir, *arguments, stdin=stdin, most=most)
