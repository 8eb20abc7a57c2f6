"""The root of a namespace sandbox: one list of steps, made once, for every backend.

The root is a read-only tmpfs that holds read-only binds of the system's programs and libraries
(/usr is covered in part, see `USR`), of one Python interpreter and of a few harmless files of /etc;
a fresh /proc; six devices; and one writable tmpfs of limited size, on which /tmp and /dev/shm lie
too, so that the limit is one number.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl_sandboxes.host.interpreter import host_interpreter

BASE = "/sandbox"
"""The writable tmpfs; the work directory is below it."""

MOVED = {"/tmp": f"{BASE}/tmp", "/var/tmp": f"{BASE}/tmp", "/dev/shm": f"{BASE}/shm"}
"""Writable directories that are links to places of the writable tmpfs."""

BIN = "/opt/agentrl/bin"
"""First on PATH; holds `python3` and `python`."""

SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/lib32",
    "/libx32",
    "/nix/store",
    "/gnu/store",
)
USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "include", "share", "local")
"""What is shown of /usr. Programs need about all of it: `git` its templates in share and its
commands in libexec or lib, `gcc` its headers and lib, shells, Perl and time zones their share. What
else a machine keeps there (src, games, and what its owner has added) is nobody's tool."""
LOCAL_HIDDEN = ("etc", "src", "var", "games")
"""What is not shown of /usr/local: settings, sources and data of this machine. All else is, because
toolchains are installed there in directories of any name (go, cargo, node)."""
CONFIG_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives")
DEVICES = ("null", "zero", "full", "random", "urandom")
OURS = ("agentrl", "agentrl_envs", "agentrl_tools", "agentrl_sandboxes")

Step = tuple[str, *tuple[str | int, ...]]
"""`("ro", source, target)`, `("device", source, target)`, `("link", text, target)`,
`("tmpfs", size_bytes, mode, target)`, `("directory", mode, target)` or `("proc", target)`;
bubblewrap also takes `("bind", source, target)`. A tmpfs whose mode has no write bits is mounted
read-only."""


def check_extra(path: Path) -> None:
    """Refuse a directory that cannot be mounted at its path.

    Raises:
        ConfigError: it is none, or it would cover something that every sandbox has.
    """
    if not path.is_dir():
        raise ConfigError(f"sandbox.read_only: {str(path)!r} is not a directory of this machine")
    ours = [Path(place) for place in (*MOVED, BASE, BIN, "/proc", "/dev", "/etc")]
    shut = (BASE, "/proc", "/opt/agentrl", *(() if path.is_relative_to("/dev/shm") else ("/dev",)))
    if any(place.is_relative_to(path) for place in ours) or any(map(path.is_relative_to, shut)):
        raise ConfigError(
            f"sandbox.read_only: {str(path)!r} cannot be shown, because every sandbox has files of "
            "its own there; name a directory below it, or copy it elsewhere"
        )


def moved_path(path: str) -> str:
    """The path where a host directory is mounted: its own, or the target of that path's link."""
    for link, target in MOVED.items():
        if Path(path).is_relative_to(link):
            return str(target / Path(path).relative_to(link))
    return path


def visible_trees(extra: Sequence[str] = ()) -> list[str]:
    """Host directories bound read-only at the same path: system, interpreter, extras."""
    trees = [path for path in SYSTEM if Path(path).is_dir() and not Path(path).is_symlink()]
    for path in (*host_interpreter().roots, *extra):
        if not any(Path(path).is_relative_to(tree) for tree in trees):
            trees.append(path)
    return trees


def root_steps(disk_bytes: int, extra: Sequence[str] = (), *, counted: bool = False) -> list[Step]:
    """The steps that make the root; targets are absolute and parents come before children.

    Args:
        disk_bytes: size of the writable tmpfs.
        extra: more host directories to show read-only.
        counted: whether nothing may be there whose memory cannot be counted.
    """
    steps: list[Step] = []
    for path in SYSTEM:
        if Path(path).is_symlink():
            steps.append(("link", str(Path(path).readlink()), path))
    trees = visible_trees([path for path in extra if moved_path(path) == path])
    steps += [("ro", path, path) for path in trees]
    # Installed beside the interpreter, our own packages would show a program how it is graded.
    steps += [("tmpfs", 4096, 0o555, path) for path in [*own_packages(trees), *hidden(extra)]]
    steps += [("ro", path, path) for path in CONFIG_FILES if Path(path).exists()]
    steps += [
        ("ro", str(path), f"/etc/{path.name}")
        for path in sorted(Path(__file__).with_name("etc").iterdir())
    ]
    if Path("/etc/localtime").exists():
        steps.append(("ro", str(Path("/etc/localtime").resolve()), "/etc/localtime"))
    steps.append(("proc", "/proc"))
    for name in DEVICES:
        # It can be mapped, as shared memory without a file. `full` reads the same, and cannot be.
        source = "full" if counted and name == "zero" else name
        steps.append(("device", f"/dev/{source}", f"/dev/{name}"))
    steps += [
        ("link", "/proc/self/fd", "/dev/fd"),
        ("link", "/proc/self/fd/0", "/dev/stdin"),
        ("link", "/proc/self/fd/1", "/dev/stdout"),
        ("link", "/proc/self/fd/2", "/dev/stderr"),
        *(("link", place, path) for path, place in MOVED.items()),
        ("tmpfs", disk_bytes, 0o1777, BASE),
        *moved_steps(extra),
        ("link", host_interpreter().executable, f"{BIN}/python3"),
        ("link", host_interpreter().executable, f"{BIN}/python"),
    ]
    return steps


def moved_steps(extra: Sequence[str]) -> list[Step]:
    """Steps that show those of the `extra` directories that lie in the writable tmpfs."""
    steps: list[Step] = []
    for path in extra:
        shown_at = moved_path(path)
        if shown_at == path:
            continue
        parents = [str(p) for p in reversed(Path(shown_at).parents) if p.is_relative_to(BASE)][1:]
        # The first is made before the program's user is known, and others may not empty it.
        steps += [("directory", 0o755 if n else 0o1777, parent) for n, parent in enumerate(parents)]
        steps.append(("ro", path, shown_at))
    return steps


def own_packages(trees: Sequence[str]) -> list[str]:
    """Directories of agentrl's packages that lie in what is visible."""
    found: list[str] = []
    for name in OURS:
        spec = importlib.util.find_spec(name)
        for place in (spec and spec.submodule_search_locations) or ():
            path = Path(place).resolve()
            if any(path.is_relative_to(tree) for tree in trees):
                found.append(str(path))
    return found


def hidden(extra: Sequence[str], usr: Path = Path("/usr")) -> list[str]:
    """Directories of /usr that are covered, because no program needs them; those with content only.

    Args:
        extra: host directories that are shown on demand; what leads to one is not covered.
        usr: the directory, for tests.
    """
    found = [path for path in _folders(usr) if path.name not in USR]
    found += [path for path in _folders(usr / "local") if path.name in LOCAL_HIDDEN]
    shown = [*map(Path, extra), *map(Path, host_interpreter().roots)]
    return [
        str(path)
        for path in found
        if not any(place.is_relative_to(path) for place in shown) and _has_content(path)
    ]


def _folders(place: Path) -> list[Path]:
    """Directories in a directory, sorted; links are left to what they lead to."""
    try:
        return sorted(path for path in place.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def _has_content(path: Path) -> bool:
    """True if there is something in a directory, or if we cannot know."""
    try:
        return any(path.iterdir())
    except OSError:
        return True


def environment(base: str, path: str) -> dict[str, str]:
    """The environment of every program; nothing of the host's."""
    return {
        "PATH": f"{path}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        "HOME": f"{base}/home",
        "TMPDIR": f"{base}/tmp",
        "LANG": "C.UTF-8",
        "USER": "sandbox",
    }
