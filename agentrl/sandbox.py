"""The contract of a sandbox: a place where a model's code runs and cannot do harm.

A backend makes sandboxes, a sandbox runs commands. What the *program* does is a result
(`ExecResult.outcome`); what the *sandbox* does wrong is `SandboxError`, which is infrastructure
and is never shown to a model as program output. No limit has the default "unlimited".
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path

from agentrl.errors import SandboxError, SandboxUnavailable


class Outcome(StrEnum):
    """The way in which a command ended."""

    OK = "ok"
    """Exit status 0."""
    NONZERO = "nonzero"
    """Another exit status, or killed by a signal of its own making."""
    TIMEOUT = "timeout"
    """Killed at its wall-clock limit, with everything it had started."""
    OOM = "oom"
    """Killed at its memory limit."""
    OUTPUT_LIMIT = "output_limit"
    """Killed because it printed more than `output_bytes`."""
    INFRASTRUCTURE = "infrastructure"
    """The sandbox failed, not the program. Never in an `ExecResult`: it is what a `SandboxError` is
    counted as."""


class Isolation(IntEnum):
    """Strength of a backend's isolation; a larger value is stronger."""

    WEAK = 1
    """Limits only: the program sees the host's files and network."""
    NAMESPACES = 2
    """Own mount, process, network, ipc and user namespaces on the host's kernel."""
    CONTAINER = 3
    """Namespaces with dropped capabilities, seccomp and cgroup limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Hard limits of one sandbox."""

    wall_s: float = 10.0
    """Wall-clock seconds a command may take unless `exec` says less."""
    memory_bytes: int = 512 * 2**20
    """Memory of all processes together, with what they have in sockets and in shared segments."""
    processes: int = 32
    """Processes and threads alive at once."""
    output_bytes: int = 64 * 2**10
    """Bytes of stdout and of stderr that are kept, each as head and tail. A command that prints
    more than sixteen times as much is killed with `OUTPUT_LIMIT`."""
    disk_bytes: int = 64 * 2**20
    """Bytes the sandbox may write."""
    open_files: int = 1024
    """File descriptors per process."""
    cpus: float = 1.0
    """CPU cores of all processes together; kept by backends with cgroups (docker) only."""
    lifetime_s: float = 3600.0
    """Seconds until a sandbox ends itself, whatever its owner does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """The result of a command: status and output."""

    outcome: Outcome
    """Outcome of the command."""
    exit_code: int | None
    """Exit status; negative signal number if a signal ended it; None when we killed it."""
    stdout: str
    """Decoded as UTF-8 with replacement; head and tail with a marker between when shortened."""
    stderr: str
    """Standard error, bounded as `stdout`."""
    duration_s: float
    """Wall time in seconds."""
    stdout_truncated: bool = False
    """Whether bytes of stdout are missing."""
    stderr_truncated: bool = False
    """Whether bytes of stderr are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The source of a sandbox; for metrics."""

    waited_s: float = 0.0
    """Seconds in line for a slot and for a turn to start; the start itself is not in it."""
    warm: bool = False
    """Whether it had been started ahead of use."""
    reused: bool = False
    """Whether it had served another rollout and was wiped."""
    forked: bool = False
    """Whether it began as a copy of a work directory that was prepared once."""


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
        """The way in which it ended; None while it runs, or where this kind does not say."""
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


Prepare = Callable[[Sandbox], Awaitable[None]]
"""Fills a fresh sandbox: uploads a repository, installs a fixture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """Requirements of a task on its sandbox; the defaults are those of the config."""

    image: str = ""
    """Container image; empty takes the backend's own. Backends without images refuse any other."""
    limits: SandboxLimits | None = None
    """Limits of this sandbox; None takes those of the config."""
    key: str = ""
    """Names what `prepare` makes. Sandboxes of one key (the siblings of a group, and the one that
    grades) are forks of a work directory that was prepared once."""
    prepare: Prepare | None = None
    """Fills the work directory; run once per key, or once per sandbox where `key` is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Result of trying whether a backend really works on this machine."""

    available: bool
    """Whether a command ran inside it."""
    isolation: Isolation
    """Strength of the isolation."""
    detail: str
    """One sentence: what was found, and if unavailable what to install."""


class SandboxBackend(ABC):
    """Makes sandboxes of one kind."""

    name: str
    """As in `sandbox.backend` of a config."""
    starts_fast: bool = False
    """Whether a start takes some 20 ms, so that a pool need not bound how many start at once."""

    @abstractmethod
    async def probe(self) -> Probe:
        """Try the backend once and say what it can do. Never raises."""

    @abstractmethod
    async def create(
        self, limits: SandboxLimits, snapshot: Snapshot | None = None, *, image: str = ""
    ) -> Sandbox:
        """Make a sandbox with an empty work directory, or one filled from `snapshot`.

        Args:
            limits: its hard limits.
            snapshot: of a sandbox of this backend.
            image: container image; empty takes the backend's own.

        Raises:
            SandboxUnavailable: no such image, or a backend without images was asked for one.
            SandboxError: it could not be made.
        """

    async def take(
        self,
        spec: SandboxSpec,
        limits: SandboxLimits,
        *,
        timeout_s: float | None = None,
        more: bool = False,
    ) -> Sandbox:
        """A sandbox as a task wants it. Pools override this to prepare once and to fork.

        Args:
            spec: what is wanted.
            limits: those of the config, for a spec without its own.
            timeout_s: bounds making and preparing it, each; not the wait for a slot.
            more: the caller holds a sandbox already, so it is not made to wait for a slot: two
                that waited for each other's would wait for ever.

        Raises:
            SandboxError: as `create`, or it took too long; also whatever `prepare` raises.
        """
        scope = asyncio.timeout(timeout_s)
        try:
            async with scope:
                return await self._make(spec, limits)
        except TimeoutError:
            if not scope.expired():
                raise
            raise SandboxError(
                f"sandbox backend {self.name!r} did not open a sandbox in {timeout_s:g} s"
            ) from None

    async def _make(self, spec: SandboxSpec, limits: SandboxLimits) -> Sandbox:
        # Backends without images need not know the word.
        limits = spec.limits or limits
        make = self.create(limits, image=spec.image) if spec.image else self.create(limits)
        sandbox = await make
        if spec.prepare is not None:
            try:
                await spec.prepare(sandbox)
            except BaseException:
                await sandbox.close()
                raise
        return sandbox

    @abstractmethod
    async def close(self) -> None:
        """Close every sandbox still open. Idempotent."""
