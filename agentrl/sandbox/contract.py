"""The contract of a sandbox, of the programs that stay in it and of its ports."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agentrl.errors import SandboxUnavailable
from agentrl.sandbox.records import ExecResult, Origin, Outcome, SandboxLimits
from agentrl.sandbox.tree import FileTree, read_by_tar, write_by_tar


class Snapshot(ABC):
    """A frozen copy of a sandbox's work directory, from which siblings can start."""

    size_bytes: int = 0
    """Memory it takes in this process, for those who keep many."""

    @abstractmethod
    async def close(self) -> None:
        """Delete the sandbox. Idempotent."""


class Process(ABC):
    """A program that stays while its owner talks to it: an interactive session.

    It lives until `close` or until its sandbox ends, under the limits of the sandbox. What it
    prints waits inside until it is read, so a flood holds up the program and nothing else.
    """

    @property
    def outcome(self) -> Outcome | None:
        """The way in which it ended; None while it runs, or where this kind does not report it."""
        return None

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Give it more stdin; waits while it reads slowly.

        Raises:
            BrokenPipeError: it has ended or closed its stdin.
            SandboxError: the sandbox failed or is closed.
        """

    @abstractmethod
    async def read(self, *, timeout_s: float) -> bytes:
        """Output since the last read, stdout and stderr in one; `b""` when it has ended.

        Raises:
            TimeoutError: it printed nothing in `timeout_s` seconds.
            SandboxError: the sandbox failed or is closed.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """Send SIGINT to what it runs in the foreground, as Ctrl-C does."""

    @abstractmethod
    async def close(self) -> int | None:
        """Kill it and everything it started. Idempotent.

        Returns:
            The exit status if it had ended by itself (negative signal number), None if killed.
        """


MakeProtocol = Callable[[], asyncio.Protocol]
"""Makes the handler of one connection, as for `loop.create_server`."""


class SandboxPort(ABC):
    """A port on the loopback of a sandbox; who answers there is outside.

    Programs inside connect to it as to any server, and reach nothing by it but the one handler.
    """

    host: str
    """The address inside, 127.0.0.1."""

    port: int
    """The number of the port."""

    @abstractmethod
    async def close(self) -> None:
        """Close the port and every connection to it. Idempotent.

        Raises:
            SandboxError: the sandbox does not answer.
        """


class Sandbox(ABC):
    """One isolated work directory with hard limits. `exec` may be called concurrently."""

    limits: SandboxLimits
    """The limits it was made with."""

    workdir: str
    """The absolute path of the work directory as programs inside see it."""

    origin: Origin = Origin()
    """Wait and history of the sandbox."""

    @abstractmethod
    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a program to its end and kill everything it started.

        Args:
            command: program and arguments; use `("sh", "-c", ...)` for a shell.
            stdin: bytes given to the program; then end of file.
            timeout_s: less than `limits.wall_s` to be stricter; more is an error.
            cwd: relative to the work directory; default the work directory.
            env: added to a minimal environment; nothing of the host's environment is inherited.

        Raises:
            SandboxError: the sandbox failed or is closed; the program's own failure never raises.
            ValueError: an empty command or a time-out above the limit.
        """

    async def start(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Run a program that stays. Arguments as for `exec`.

        Raises:
            SandboxUnavailable: this kind of sandbox offers no sessions.
            SandboxError: the sandbox failed or is closed.
            ValueError: an empty command.
        """
        raise SandboxUnavailable(f"{type(self).__name__} runs commands, but none that stay")

    async def listen(self, make_protocol: MakeProtocol) -> SandboxPort:
        """Answer programs inside at a free port of their loopback; no network is opened for it.

        Args:
            make_protocol: called in this process for each connection. Its transport keeps to the
                contract of `asyncio.Transport`: a handler that pauses reading holds up the program,
                and one that is told to pause writes to a program that reads slowly.

        Returns:
            The port, open until it or the sandbox is closed or made new by `reset`.

        Raises:
            SandboxUnavailable: this kind of sandbox has no ports, or no loopback.
            SandboxError: the sandbox failed or is closed.
        """
        raise SandboxUnavailable(
            f"{type(self).__name__} has no ports that are answered outside, which an agent program "
            "needs to reach its model; use a backend of agentrl_sandboxes, or write `listen`"
        )

    @abstractmethod
    async def read_file(self, path: str, *, max_bytes: int = 2**20) -> bytes:
        """Read a file of the work directory; relative paths start there.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: as they say; a path that leads
                out of the work directory, through symbolic links too, is a `PermissionError`, and
                so is one through more links than a kernel follows.
            ValueError: the file is larger than `max_bytes`.
            SandboxError: the sandbox failed or is closed.
        """

    @abstractmethod
    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file below the work directory, making directories as needed.

        Raises:
            PermissionError: the path leads out of the work directory.
            OSError: no space left inside the sandbox.
            SandboxError: the sandbox failed or is closed.
        """

    @abstractmethod
    async def upload(self, source: Path, target: str) -> None:
        """Copy a file or directory tree of the host to `target` in the work directory.

        Symbolic links are copied as links if they stay inside the tree and refused otherwise.

        Raises:
            PermissionError, OSError, SandboxError: as for `write_file`.
        """

    async def download(self, source: str, *, max_bytes: int) -> dict[str, bytes]:
        """The regular files at or below `source` of the work directory, by relative path.

        Links are not followed and not listed; a name that is not UTF-8 is surrogate-escaped.

        Raises:
            FileNotFoundError, PermissionError: as for `read_file`.
            ValueError: together they are larger than `max_bytes`.
            SandboxUnavailable: this kind of sandbox gives single files only.
            SandboxError: the sandbox failed or is closed.
        """
        raise SandboxUnavailable(f"{type(self).__name__} reads single files, but no trees")

    async def download_tree(self, source: str, *, max_bytes: int) -> FileTree:
        """The folder `source` of the work directory with all that is in it, as it is.

        Permission bits hinder it where those of the program that reads do.

        Raises:
            FileNotFoundError, NotADirectoryError, PermissionError: as for `read_file`.
            ValueError: its files together are larger than `max_bytes`.
            SandboxError: the sandbox failed or is closed.
        """
        return await read_by_tar(self, source, max_bytes)

    async def upload_tree(self, tree: FileTree, target: str) -> None:
        """Lay a tree out in the folder `target` of the work directory, where no such folder is.

        Links arrive as they are, wherever they lead: whoever reads through them must mind it.

        Raises:
            PermissionError, OSError, SandboxError: as for `write_file`.
        """
        await write_by_tar(self, tree, target)

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """Freeze the work directory; pass the result to `SandboxBackend.create`."""

    async def fill(self, snapshot: Snapshot) -> None:
        """Lay `snapshot` out in the work directory, which nothing has been written to.

        Raises:
            SandboxUnavailable: this kind of sandbox is filled when it is made, not later.
            SandboxError: the sandbox failed or is closed, or the snapshot is of another kind.
        """
        raise SandboxUnavailable(f"{type(self).__name__} is filled when it is made, not later")

    async def reset(self) -> None:
        """Make it as good as new: kill all that runs inside, wipe all that can be written to.

        Raises:
            SandboxUnavailable: this kind of sandbox serves once.
            SandboxError: it could not be made clean; close it.
        """
        raise SandboxUnavailable(f"{type(self).__name__} serves once")

    @abstractmethod
    async def close(self) -> None:
        """Kill everything inside and delete the work directory. Idempotent, never raises."""
