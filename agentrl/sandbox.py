"""The contract of a sandbox: a place where a model's code runs and cannot do harm.

A backend makes sandboxes, a sandbox runs commands. What the *program* does is a result
(`ExecResult.outcome`); what the *sandbox* does wrong is `SandboxError`, which is infrastructure
and is never shown to a model as program output. No limit has the default "unlimited".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path


class Outcome(StrEnum):
    """How a command ended."""

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


class Isolation(IntEnum):
    """How strong a backend is; a larger value is stronger."""

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
    """Memory of all processes together."""
    processes: int = 32
    """Processes and threads alive at once."""
    output_bytes: int = 64 * 2**10
    """Bytes of stdout and of stderr that are kept, each as head and tail. A command that prints
    more than sixteen times as much is killed with `OUTPUT_LIMIT`."""
    disk_bytes: int = 64 * 2**20
    """Bytes the sandbox may write."""
    open_files: int = 256
    """File descriptors per process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What a command left behind."""

    outcome: Outcome
    """How it ended."""
    exit_code: int | None
    """Exit status; negative signal number if a signal ended it; None when we killed it."""
    stdout: str
    """Decoded as UTF-8 with replacement; head and tail with a marker between when shortened."""
    stderr: str
    """As `stdout`."""
    duration_s: float
    """Wall time in seconds."""
    stdout_truncated: bool = False
    """Whether bytes of stdout are missing."""
    stderr_truncated: bool = False
    """Whether bytes of stderr are missing."""


class Snapshot(ABC):
    """A frozen copy of a sandbox's work directory, from which siblings can start."""

    @abstractmethod
    async def close(self) -> None:
        """Delete it. Idempotent."""


class Sandbox(ABC):
    """One isolated work directory with hard limits. `exec` may be called concurrently."""

    limits: SandboxLimits
    """The limits it was made with."""

    workdir: str
    """The absolute path of the work directory as programs inside see it."""

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

    @abstractmethod
    async def read_file(self, path: str, *, max_bytes: int = 2**20) -> bytes:
        """Read a file of the work directory; relative paths start there.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: as they say; a path that leads
                out of the work directory, through symbolic links too, is a `PermissionError`.
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
        """

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """Freeze the work directory; pass the result to `SandboxBackend.create`."""

    @abstractmethod
    async def close(self) -> None:
        """Kill everything inside and delete the work directory. Idempotent, never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Whether a backend really works on this machine, found by trying it."""

    available: bool
    """Whether a command ran inside it."""
    isolation: Isolation
    """How strong it would be."""
    detail: str
    """One sentence: what was found, and if unavailable what to install."""


class SandboxBackend(ABC):
    """Makes sandboxes of one kind."""

    name: str
    """As in `sandbox.backend` of a config."""

    @abstractmethod
    async def probe(self) -> Probe:
        """Try the backend once and say what it can do. Never raises."""

    @abstractmethod
    async def create(self, limits: SandboxLimits, snapshot: Snapshot | None = None) -> Sandbox:
        """Make a sandbox with an empty work directory, or one filled from `snapshot`.

        Raises:
            SandboxError: it could not be made.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close every sandbox still open. Idempotent."""
