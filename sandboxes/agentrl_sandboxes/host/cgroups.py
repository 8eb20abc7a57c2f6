"""A cgroup for each sandbox of the host, wherever this process may make one.

The kernel then holds the memory of a sandbox, with all that belongs to no process: pages of shared
mappings that nobody has mapped any more, buffers of pipes and sockets, objects of System V, inodes.
Real root may make cgroups nearly everywhere; an ordinary user where somebody has given it a subtree
(a systemd user service or scope, `systemd-run --user --scope`, a container with delegation).

The host makes the cgroup and opens its files, whose descriptors the supervisor inherits: inside, no
path leads to them. A process that is not ours is never moved, and no setting of a cgroup that is
not ours is changed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandbox import SandboxLimits
from agentrl_sandboxes.guest.limits import RESERVE
from agentrl_sandboxes.host.identity import process_namespace, started

MARK = re.compile(r"agentrl-(\d+)-(\d+)-(\d+)-\d+")
"""Name of a cgroup of ours: the namespace of the process that made it, its id in there, when it
started, and a number."""
OVERHEAD = 64 * 2**20 + RESERVE
"""Bytes for the supervisor and the kernel's own use, and those that the supervisor keeps free."""
REMOVAL_S = 1.0
"""How long the kernel may take to release the processes that were in a cgroup."""

FILES = {
    1: {
        "join": "cgroup.procs",
        "held": "memory.usage_in_bytes",
        "most": "memory.limit_in_bytes",
        "kinds": "memory.stat",
        "oom": "memory.oom_control",
    },
    2: {
        "join": "cgroup.procs",
        "held": "memory.current",
        "most": "memory.max",
        "kinds": "memory.stat",
        "oom": "memory.events",
    },
}
"""Files of a cgroup by version: the one that takes processes, what they hold, what they may hold,
what of it can be had back, and how many the kernel has killed."""
SWAP = {1: "memory.memsw.limit_in_bytes", 2: "memory.swap.max"}
TCP = "memory.kmem.tcp.limit_in_bytes"
"""Version 1 counts buffers of TCP on their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHome:
    """The cgroup below which those of sandboxes are made."""

    path: Path
    """Its directory."""
    version: int
    """1 or 2."""


class MemoryGroup:
    """One cgroup: made before its supervisor starts, removed after that has ended."""

    def __init__(self, home: GroupHome, name: str, limit_bytes: int) -> None:
        """Make it, and bound what is in it.

        Raises:
            OSError: the kernel refuses.
        """
        self.path = home.path / name
        self.fds: dict[str, int] = {}
        """Open files by their part, for the supervisor to inherit."""
        self.path.mkdir()
        try:
            self._write(FILES[home.version]["most"], limit_bytes)
            with contextlib.suppress(FileNotFoundError):
                # There is none where the kernel does not count swap.
                self._write(SWAP[home.version], limit_bytes if home.version == 1 else 0)
            if home.version == 1:
                with contextlib.suppress(FileNotFoundError):
                    self._write(TCP, limit_bytes)
            for part, file in FILES[home.version].items():
                flags = os.O_WRONLY if part == "join" else os.O_RDONLY
                self.fds[part] = os.open(self.path / file, flags | os.O_CLOEXEC)
        except OSError:
            self.close_files()
            self.remove()
            raise

    def _write(self, file: str, value: int) -> None:
        # In one piece and without a truncation, which not every such file takes.
        fd = os.open(self.path / file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)

    def close_files(self) -> None:
        """Close our copies of the files, once the supervisor has its own."""
        while self.fds:
            os.close(self.fds.popitem()[1])

    def remove(self) -> bool:
        """Remove it; False while processes are still in it."""
        try:
            self.path.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True


_numbers = itertools.count()


def group_name() -> str:
    """A name for the next cgroup of this process."""
    pid = os.getpid()
    return f"agentrl-{process_namespace()}-{pid}-{started(pid)}-{next(_numbers)}"


def memory_group(limits: SandboxLimits) -> MemoryGroup | None:
    """A cgroup for a sandbox, whose files lie in memory; None where there can be none.

    Raises:
        SandboxError: there can be some, but not this one now.
    """
    home = group_home()
    if isinstance(home, str):
        return None
    try:
        most = limits.memory_bytes + limits.disk_bytes + OVERHEAD
        return MemoryGroup(home, group_name(), most)
    except OSError as error:
        raise SandboxError(f"sandbox: no cgroup in {home.path}: {error.strerror}") from error


def is_held() -> bool:
    """True if a cgroup holds the memory of each sandbox."""
    return not isinstance(group_home(), str)


def what_holds_memory() -> str:
    """Describe in words what keeps sandboxes of the host within their memory."""
    home = group_home()
    if isinstance(home, str):
        return (
            "memory is counted in /proc by the supervisor, and what cannot be counted is "
            f"forbidden, because {home} (`systemd-run --user --scope` or root gives some)"
        )
    return f"a cgroup (version {home.version}) below {home.path} holds its memory"


def sweep_groups(home: GroupHome, *, dry_run: bool = False) -> list[Path]:
    """Remove the cgroups of processes that have ended; those in which something lives stay."""
    swept: list[Path] = []
    for path in home.path.glob("agentrl-*"):
        match = MARK.fullmatch(path.name)
        if match is None or match[1] != process_namespace():
            continue
        if started(int(match[2])) == int(match[3]):
            continue
        with contextlib.suppress(OSError):
            if dry_run and (path / "cgroup.procs").read_bytes():
                continue
            if not dry_run:
                path.rmdir()
            swept.append(path)
    return swept


@cache
def group_home() -> GroupHome | str:
    """The place for cgroups of this process, or why there is none; tried once, by making one."""
    places = [*group_places()]
    reason = "this machine has no memory cgroups"
    for home in places:
        try:
            _try(home)
        except (OSError, subprocess.SubprocessError) as error:
            reason = f"{home.path} gives us none: {getattr(error, 'strerror', None) or error}"
            continue
        sweep_groups(home)
        return home
    return reason


def _try(home: GroupHome) -> None:
    """Make a cgroup with a process in it.

    Raises:
        OSError: it cannot be made, or has no bound for memory.
        CalledProcessError: no process may be moved there.
    """
    group = MemoryGroup(home, group_name(), 64 * 2**20)
    group.close_files()
    try:
        join = ["sh", "-c", 'echo 0 >"$0"', str(group.path / "cgroup.procs")]
        subprocess.run(join, check=True, capture_output=True, timeout=10.0)
    finally:
        give_up = time.monotonic() + REMOVAL_S
        while not group.remove() and time.monotonic() < give_up:
            time.sleep(0.001)


def group_places(proc: Path = Path("/proc/self")) -> list[GroupHome]:
    """Cgroups below which we might make some, the best first.

    Version 1: our own. Version 2: our own if it passes its memory controller on, which only one
    without processes may, and the root; else the one above, if that does.

    Args:
        proc: the directory of a process in /proc.
    """
    try:
        lines = (proc / "cgroup").read_text(encoding="utf-8").splitlines()
        mounts = (proc / "mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found: list[GroupHome] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        version = 1 if "memory" in controllers.split(",") else 0 if controllers else 2
        own = _mounted(mounts, path, version) if version else None
        if own is None:
            continue
        if version == 1:
            return [GroupHome(path=own, version=1)]
        for place in (own, own.parent):
            with contextlib.suppress(OSError):
                passed_on = (place / "cgroup.subtree_control").read_text(encoding="utf-8").split()
                if "memory" in passed_on:
                    found.append(GroupHome(path=place, version=2))
    return found


def _mounted(mounts: list[str], path: str, version: int) -> Path | None:
    """The directory of the cgroup `path` of a hierarchy, if it is mounted."""
    kind = "cgroup2" if version == 2 else "cgroup"
    for line in mounts:
        before, _, after = line.partition(" - ")
        root, place = before.split()[3:5]
        name, _, options = after.split()[:3]
        if name != kind or (version == 1 and "memory" not in options.split(",")):
            continue
        if path == root or path.startswith(root.rstrip("/") + "/"):
            return Path(place) / path[len(root.rstrip("/")) :].lstrip("/")
    return None
