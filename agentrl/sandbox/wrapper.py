"""A sandbox around another one, for those who measure, count or lend sandboxes.

What surrounds each operation is said once, in `around`; so nothing that is added to the contract
can pass by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from agentrl.sandbox import (
    ExecResult,
    FileTree,
    MakeProtocol,
    Outcome,
    Process,
    Sandbox,
    SandboxPort,
    Snapshot,
)

Operation = Literal["exec", "start", "talk", "files", "listen"]
"""`talk` is everything done with a program that stays; `files` includes snapshots."""


class SandboxWrapper(Sandbox):
    """Passes everything on; `fill` and `reset` too, but the subclass decides on `close`."""

    def __init__(self, inner: Sandbox) -> None:
        self.limits = inner.limits
        self.workdir = inner.workdir
        self.origin = inner.origin
        self._inner = inner

    def around(self, operation: Operation) -> AbstractContextManager[None]:
        """Entered for each operation; may raise instead, and sees what the operation raises."""
        raise NotImplementedError

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a program to its end; see `Sandbox.exec`."""
        with self.around("exec"):
            return await self._inner.exec(
                command, stdin=stdin, timeout_s=timeout_s, cwd=cwd, env=env
            )

    async def start(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Run a program that stays; see `Sandbox.start`."""
        with self.around("start"):
            return _WrappedProcess(await self._inner.start(command, cwd=cwd, env=env), self)

    async def listen(self, make_protocol: MakeProtocol) -> SandboxPort:
        """Answer programs inside at a port; see `Sandbox.listen`."""
        with self.around("listen"):
            return await self._inner.listen(make_protocol)

    async def read_file(self, path: str, *, max_bytes: int = 2**20) -> bytes:
        """Read a file of the work directory; see `Sandbox.read_file`."""
        with self.around("files"):
            return await self._inner.read_file(path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file of the work directory; see `Sandbox.write_file`."""
        with self.around("files"):
            await self._inner.write_file(path, data)

    async def upload(self, source: Path, target: str) -> None:
        """Copy files of the host inside; see `Sandbox.upload`."""
        with self.around("files"):
            await self._inner.upload(source, target)

    async def download(self, source: str, *, max_bytes: int) -> dict[str, bytes]:
        """Return files of the work directory; see `Sandbox.download`."""
        with self.around("files"):
            return await self._inner.download(source, max_bytes=max_bytes)

    async def download_tree(self, source: str, *, max_bytes: int) -> FileTree:
        """Return a folder with all that is in it; see `Sandbox.download_tree`."""
        with self.around("files"):
            return await self._inner.download_tree(source, max_bytes=max_bytes)

    async def upload_tree(self, tree: FileTree, target: str) -> None:
        """Lay a tree out inside; see `Sandbox.upload_tree`."""
        with self.around("files"):
            await self._inner.upload_tree(tree, target)

    async def snapshot(self) -> Snapshot:
        """Freeze the work directory; see `Sandbox.snapshot`."""
        with self.around("files"):
            return await self._inner.snapshot()

    async def fill(self, snapshot: Snapshot) -> None:
        """Lay a snapshot out; see `Sandbox.fill`."""
        with self.around("files"):
            await self._inner.fill(snapshot)

    async def reset(self) -> None:
        """Make the sandbox as good as new; see `Sandbox.reset`."""
        with self.around("files"):
            await self._inner.reset()

    async def close(self) -> None:
        """Kill everything inside; see `Sandbox.close`."""
        await self._inner.close()


class _WrappedProcess(Process):
    """A session whose sandbox surrounds what is done with it too."""

    def __init__(self, inner: Process, sandbox: SandboxWrapper) -> None:
        self._inner = inner
        self._sandbox = sandbox

    @property
    def outcome(self) -> Outcome | None:
        return self._inner.outcome

    async def write(self, data: bytes) -> None:
        with self._sandbox.around("talk"):
            await self._inner.write(data)

    async def read(self, *, timeout_s: float) -> bytes:
        with self._sandbox.around("talk"):
            return await self._inner.read(timeout_s=timeout_s)

    async def interrupt(self) -> None:
        with self._sandbox.around("talk"):
            await self._inner.interrupt()

    async def close(self) -> int | None:
        # Not surrounded: it must also do no harm after the sandbox was released.
        return await self._inner.close()
