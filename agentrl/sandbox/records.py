"""Records of a sandbox: its limits, its strength, its commands' results and its past."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


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
    """Wall-clock seconds a command may take unless `exec` asks for less."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Result of trying whether a backend really works on this machine."""

    available: bool
    """Whether a command ran inside it."""
    isolation: Isolation
    """Strength of the isolation."""
    detail: str
    """One sentence: what was found, and if unavailable what to install."""
