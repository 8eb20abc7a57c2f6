"""The rights of a container, as the request that makes it; everything not named here is refused.

The limits, and who keeps them:

    network, capabilities      the kernel: none
    privileges, system calls   the kernel: none to gain, the default seccomp profile
    processes, memory, CPU     cgroups
    files                      a read-only root and three tmpfs
    time                       the supervisor inside, by itself

Disk: the work directory, home and $TMPDIR lie on one tmpfs of `disk_bytes`, `/tmp` and `/dev/shm`
are tmpfs of the same size each. The kernel bounds each of them, and the supervisor ends a command
when they hold more than `disk_bytes` together. They are memory of the container, whose bound is
that sum, `memory_bytes` and `OVERHEAD`: a program is ended by its own limit before the container
could be by its one. `storage_opt size` would bound the root instead; it is refused on overlay2 over
ext4, and the root is read-only anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.sandbox import SandboxLimits
from agentrl_sandboxes.guest.program import LATER_LEADERS
from agentrl_sandboxes.guest.stage import tmpfs_inodes
from agentrl_sandboxes.host.cgroups import OVERHEAD
from agentrl_sandboxes.host.layout import BASE

SPARE_PROCESSES = LATER_LEADERS + 16
"""Above those of the program: what it can have for a moment against its limit, before the
supervisor ends it, and then the supervisor and a leader for each concurrent command. If a program
could use up all, no further command could start, as if the sandbox were broken."""
OOM_SCORE = 500
"""If the machine runs out of memory, sandboxes go before the trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The settings that differ between two containers of one backend."""

    image: str
    """Id or name of the image."""
    command: Sequence[str]
    """PID 1."""
    uid: int
    """User and group of the programs inside, and of what they may write."""
    limits: SandboxLimits
    """Its limits."""
    labels: Mapping[str, str]
    """Labels that name its owner."""
    runtime: str = ""
    """Of the daemon; empty takes its default."""
    volumes: Sequence[str] = ()
    """What the image declares as such; empty and read-only here, since Docker would put them on its
    disk, writable and without a limit."""
    read_only: Sequence[str] = ()
    """Directories of the host, shown read-only at the same paths."""
    mounts: Sequence[Mapping[str, Any]] = ()
    """More mounts, as the daemon takes them."""
    environment: Sequence[str] = ()
    """Changes to the image's variables for PID 1: `NAME=value` sets one, `NAME` takes one away."""


def container_request(wanted: Container) -> dict[str, Any]:
    """The body of the request that makes a container."""
    return {
        "Image": wanted.image,
        "Entrypoint": [],
        "Cmd": list(wanted.command),
        "Env": list(wanted.environment),
        "User": f"{wanted.uid}:{wanted.uid}",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "OpenStdin": True,
        # End of file on the attached stdin, and so the end of the container, once we are gone.
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": dict(wanted.labels),
        "HostConfig": _host_config(wanted),
    }


def _host_config(wanted: Container) -> dict[str, Any]:
    limits = wanted.limits
    disk = limits.disk_bytes
    memory = limits.memory_bytes + 3 * disk + OVERHEAD
    owner = f"uid={wanted.uid},gid={wanted.uid}"
    tmpfs = f"rw,exec,nosuid,nodev,size={disk},nr_inodes={tmpfs_inodes(disk)}"
    files = limits.open_files
    return {
        "AutoRemove": True,
        "NetworkMode": "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "CapDrop": ["ALL"],
        "Privileged": False,
        # No seccomp profile is named, so the daemon's default one holds.
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": True,
        "Tmpfs": dict.fromkeys(wanted.volumes, "ro,size=4096")
        | {BASE: f"{tmpfs},{owner},mode=711", "/tmp": f"{tmpfs},{owner},mode=1777"},
        "ShmSize": disk,
        "Memory": memory,
        "MemorySwap": memory,
        "NanoCpus": round(limits.cpus * 1e9),
        "PidsLimit": limits.processes + SPARE_PROCESSES,
        "Ulimits": [
            # PID 1 holds a few pipes for every command; programs get their own limit from it.
            {"Name": "nofile", "Soft": 1024 + files, "Hard": 1024 + files},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "OomScoreAdj": OOM_SCORE,
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "Runtime": wanted.runtime,
        "Mounts": [
            {
                "Type": "bind",
                "Source": path,
                "Target": path,
                "ReadOnly": True,
                # What is mounted below it would stay writable.
                "BindOptions": {"NonRecursive": True, "Propagation": "rprivate"},
            }
            for path in wanted.read_only
        ]
        + [dict(mount) for mount in wanted.mounts],
    }
