"""The three enclosures: bubblewrap, user namespaces through `unshare`, and a plain process."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.errors import SandboxError
from agentrl.sandbox import Isolation, SandboxLimits
from agentrl_sandboxes.guest.filter import IPC, SHARED
from agentrl_sandboxes.guest.stage import tmpfs_inodes
from agentrl_sandboxes.host.cgroups import is_held
from agentrl_sandboxes.host.child import ChildBackend, Launch
from agentrl_sandboxes.host.identity import (
    counts_by_namespace,
    is_root,
    program_uid,
    threads_of_user,
)
from agentrl_sandboxes.host.interpreter import host_interpreter
from agentrl_sandboxes.host.layout import (
    BASE,
    BIN,
    Step,
    check_extra,
    environment,
    moved_path,
    root_steps,
)

logger = logging.getLogger(__name__)

ENABLE_USERNS = (
    "Unprivileged user namespaces must be allowed (sysctl kernel.unprivileged_userns_clone=1, "
    "user.max_user_namespaces above 0, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0; "
    "in a container, a seccomp profile that permits unshare)"
)


def base_config(limits: SandboxLimits) -> dict[str, Any]:
    """The config of `guest.stage` for a sandbox that has its own root."""
    return {
        "limits": {
            "memory": limits.memory_bytes,
            "processes": limits.processes,
            "output": limits.output_bytes,
            "disk": limits.disk_bytes,
            "open_files": limits.open_files,
        },
        "lifetime": float(limits.lifetime_s),
        "base": BASE,
        "places": [],
        "keep": [],
        "files": [],
        "tell": False,
        "filter": True,
        "uncounted": (),
        "cgroup": False,
        "group": None,
        "inodes": 0,
        "nice": 0,
        "workdir": f"{BASE}/work",
        "env": environment(BASE, BIN),
        "links": [],
        "program_uid": None,
        "other_processes": 0 if counts_by_namespace() or is_root() else threads_of_user() + 64,
        "watch": False,
        "remove": False,
        "own_namespaces": True,
        # Otherwise the bound on processes holds for the moment of the start only.
        "resettable": counts_by_namespace() or is_root(),
        "uncover": None,
        "root": None,
        "identity": True,
        "uid": None,
        "nested": "must",
    }


class NamespaceBackend(ChildBackend):
    """The layout and the identity, which bubblewrap and userns share."""

    isolation = Isolation.NAMESPACES
    options = ("read_only",)
    program: str
    """The binary that makes the namespaces."""

    def __init__(self, *, read_only: Sequence[Path] = ()) -> None:
        """Show programs the `read_only` directories of the host too, at the same paths.

        Raises:
            ConfigError: one of them cannot be shown.
        """
        super().__init__()
        resolved = [Path(path).resolve() for path in read_only]
        for path in resolved:
            check_extra(path)
        self._extra = tuple(map(str, resolved))
        self._steps: dict[int, list[Step]] = {}

    def launch(self, limits: SandboxLimits, number: int) -> Launch:
        """The command that encloses one supervisor; see `ChildBackend.launch`."""
        found = shutil.which(self.program)
        if found is None:
            raise SandboxError(f"{self.program!r} is not on PATH")
        counted = not is_held()
        config = base_config(limits) | {
            "keep": [moved_path(path) for path in self._extra],
            "inodes": tmpfs_inodes(limits.disk_bytes),
            "uncounted": (SHARED,) if counted else (),
        }
        if is_root():
            config |= {"uid": program_uid(number), "nested": "try"}
        if limits.disk_bytes not in self._steps:
            steps = root_steps(limits.disk_bytes, self._extra, counted=counted)
            self._steps[limits.disk_bytes] = steps
        return self._enclose(found, config, self._steps[limits.disk_bytes])

    def _enclose(self, program: str, config: dict[str, Any], steps: list[Step]) -> Launch:
        raise AssertionError("a subclass encloses")


class UsernsBackend(NamespaceBackend):
    """Namespaces made by util-linux `unshare`, mounts by our own stage.

    As an ordinary user it starts with a user namespace; the real root needs none to mount, and
    enters one afterwards as an ordinary user.
    """

    name = "userns"
    program = "unshare"
    remedy = f"Install util-linux. {ENABLE_USERNS}"

    def _enclose(self, program: str, config: dict[str, Any], steps: list[Step]) -> Launch:
        flags = ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
        if not is_root():
            flags = ["--user", "--map-root-user", *flags]
        return Launch(
            argv=[program, *flags, "--", *host_interpreter().command],
            config=config | {"root": steps},
        )


class BubblewrapBackend(NamespaceBackend):
    """Namespaces and mounts made by bubblewrap."""

    name = "bubblewrap"
    program = "bwrap"
    remedy = f"Install the package 'bubblewrap' (version 0.6 or newer). {ENABLE_USERNS}"

    def _enclose(self, program: str, config: dict[str, Any], steps: list[Step]) -> Launch:
        flags = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        flags += ["--as-pid-1", "--hostname", "sandbox", "--clearenv", "--cap-drop", "ALL"]
        # For our stage, which bounds the inodes of the tmpfs, for which bubblewrap has no option,
        # and gives it up before anything of the program is there.
        flags += ["--cap-add", "CAP_SYS_ADMIN"]
        if is_root():
            # To become an ordinary user, and to forbid that user namespaces of its own: bubblewrap
            # covers /proc/sys for the real root, and the switch for that is in there.
            flags += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
            steps = [*steps, ("bind", "/proc/sys/user", "/proc/sys/user")]
        else:
            flags += ["--unshare-user"]
        # Left to itself, bubblewrap makes parent directories that only their owner may enter.
        parents = {str(parent) for step in steps for parent in Path(str(step[-1])).parents}
        mounts = [
            word for path in sorted(parents - {"/"}) for word in ("--perms", "0755", "--dir", path)
        ]
        mounts += [word for step in steps for word in bubblewrap_words(step)]
        tail = ["--remount-ro", "/", "--chdir", "/", "--"]
        return Launch(
            argv=[program, *flags, *mounts, *tail, *host_interpreter().command], config=config
        )


def bubblewrap_words(step: Step) -> list[str]:
    """One step of the layout as arguments of bubblewrap."""
    kind, target = step[0], str(step[-1])
    if kind == "tmpfs":
        words = ["--perms", f"{step[2]:04o}", "--size", str(step[1]), "--tmpfs", target]
        # A mode without write bits stands for a read-only tmpfs, here as in `guest.stage`.
        return words if int(step[2]) & 0o222 else [*words, "--remount-ro", target]
    if kind == "directory":
        return ["--perms", f"{step[1]:04o}", "--dir", target]
    option = {
        "ro": "--ro-bind",
        "device": "--dev-bind",
        "bind": "--bind",
        "link": "--symlink",
        "proc": "--proc",
    }
    return [option[kind], *map(str, step[1:])]


class ProcessBackend(ChildBackend):
    """Limits without walls: a child process with rlimits, its own session and environment.

    The real root gives every sandbox a user id of its own. Files and network of the host stay
    visible with the rights of that user.
    """

    name = "process"
    isolation = Isolation.WEAK
    remedy = "It needs Linux, a readable /proc and a Python interpreter that any user may run"
    _warned = False

    def launch(self, limits: SandboxLimits, number: int) -> Launch:
        """The command that encloses one supervisor; see `ChildBackend.launch`."""
        if not ProcessBackend._warned:
            ProcessBackend._warned = True
            logger.warning(
                "sandbox backend 'process' is WEAK: programs see this machine's files and network "
                "with the rights of %s; only time, memory, processes, output and disk are limited. "
                "Install bubblewrap or allow user namespaces for real isolation",
                "an unprivileged user" if is_root() else "your own user",
            )
        mark = f"agentrl-{os.getpid()}-{secrets.token_hex(8)}"
        base = Path(tempfile.gettempdir()).resolve() / mark
        bin_dir = f"{base}/bin"
        python = host_interpreter()
        config = base_config(limits) | {
            "base": str(base),
            "workdir": f"{base}/work",
            "env": {**environment(str(base), bin_dir), "AGENTRL_SANDBOX": mark},
            "links": [(f"{bin_dir}/{name}", python.executable) for name in ("python3", "python")],
            "watch": True,
            "remove": True,
            # System V objects of all users lie together.
            "own_namespaces": False,
            "resettable": False,
            "identity": False,
        }
        # Objects of System V that an ordinary user has made cannot be told from its others, so that
        # nobody would remove them.
        config["uncounted"] = (
            *(() if is_held() else (SHARED,)),
            *(() if is_root() else (IPC,)),
        )
        if is_root():
            config["program_uid"] = program_uid(number)
            if not python.reachable() and (cover := python.cover()):
                config["uncover"] = (cover, list(python.roots))
        else:
            # The kernel counts all processes of the user, other sandboxes' too. The supervisor
            # counts those of its own; this bound only keeps a fork bomb from outrunning it, and is
            # wide enough that others can go on starting processes meanwhile.
            config["other_processes"] = threads_of_user() + 256
        return Launch(argv=python.command, config=config, base=base, mark=mark)
