"""An image without a registry: Debian's own packages laid out in a directory and imported.

Everything runs in a mount and a process namespace of its own and dies with us, so a build that is
killed leaves no mount behind; the next one, or `agentrl sandbox gc`, deletes its directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import platform
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from agentrl.errors import SandboxError, SandboxUnavailable
from agentrl_sandboxes.image.recipe import UID, USER, Recipe

PREFIX = "agentrl-image-"
"""Directories of builds, below TMPDIR; those of dead builds are deleted by the next."""
LOCK = "agentrl-image.lock"
NEEDED_BYTES = 1_500_000_000
"""Free space asked for before a build begins: the tree and its packages take about 0.7 GB."""
APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
CHUNK = 2**20
LEFT_OUT = ("./dev/*", "./proc/*", "./sys/*", "./run/*", "./tmp/*", "./var/cache/apt/*.bin")

OnLine = Callable[[str], None]


def trouble() -> str:
    """Empty if this way is open to this user on this machine, else what is in the way."""
    if os.geteuid() != 0:
        return (
            "debootstrap needs root; run the command with sudo, or build from the Dockerfile with "
            "--from dockerfile, which needs a registry"
        )
    for program, package in (("debootstrap", "debootstrap"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            return f"{program!r} is not on PATH; install it with `apt-get install {package}`"
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free
    if free < NEEDED_BYTES:
        return (
            f"{place} has {free / 1e9:.1f} GB free, expected at least {NEEDED_BYTES / 1e9:.1f}; "
            "set TMPDIR to a directory on a larger disk"
        )
    return ""


@contextlib.contextmanager
def directory():
    """A directory for one build, deleted afterwards; the caller holds the lock of builds."""
    for left in _directories(Path(tempfile.gettempdir())):
        if left.stat().st_uid == os.geteuid():
            shutil.rmtree(left, ignore_errors=True)
    place = Path(tempfile.mkdtemp(prefix=PREFIX))
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def lock_path(temporary: Path, uid: int) -> Path:
    """The file that a build of a user holds locked for as long as it lives."""
    return temporary / f"{uid}-{LOCK}"


def left_behind(temporary: Path) -> list[Path]:
    """Directories of builds that were killed, of this user; for root those of all users."""
    found: list[Path] = []
    for path in _directories(temporary):
        # It may be gone since it was listed.
        with contextlib.suppress(FileNotFoundError):
            owner = path.stat().st_uid
            if os.geteuid() in (0, owner) and not _is_locked(lock_path(temporary, owner)):
                found.append(path)
    return found


def _directories(temporary: Path) -> list[Path]:
    found = sorted(temporary.glob(f"{PREFIX}*"))
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def _is_locked(path: Path) -> bool:
    """True while a build holds the lock; it dies with its holder."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # a link that another user has put there, or a file that is not ours
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


async def lay_out(recipe: Recipe, tree: Path, mirror: str, on_line: OnLine) -> None:
    """Fill `tree` with what the recipe asks for.

    Raises:
        SandboxUnavailable: something is missing on this machine.
        SandboxError: a step failed; says what it printed last.
    """
    packages = ",".join(recipe.all_packages)
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", recipe.suite, str(tree)]
    await _run([*APART, *command, *([mirror] if mirror else [])], on_line)
    on_line("installing Python packages")
    await _python_packages(recipe, tree, on_line)
    _tidy(tree)


async def _python_packages(recipe: Recipe, tree: Path, on_line: OnLine) -> None:
    """With the pip of this machine, whose indexes and wheels it may use; nothing runs in `tree`."""
    found = sorted(tree.glob("usr/lib/python3.*"), key=lambda path: len(path.name))
    versions = [path.name.removeprefix("python") for path in found if path.name[8:].isdecimal()]
    if not versions:
        raise SandboxError(f"image: Debian {recipe.suite} has brought no Python 3")
    version = versions[-1]
    target = tree / f"usr/local/lib/python{version}/dist-packages"
    machine = platform.machine()
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in (17, 28, 34)]
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-compile"),
        *("--target", str(target), "--python-version", version, "--only-binary", ":all:"),
        *(part for name in platforms for part in ("--platform", name)),
        *recipe.all_python_packages,
    ]
    try:
        await _run(command, on_line)
    except SandboxError as error:
        raise SandboxError(
            f"{error}; --python-packages takes what has wheels for Python {version} on {machine}"
        ) from error
    programs = tree / "usr/local/bin"
    programs.mkdir(parents=True, exist_ok=True)
    for script in (target / "bin").glob("*"):
        first, line, rest = script.read_bytes().partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            first = b"#!/usr/bin/python3"
        (programs / script.name).write_bytes(first + line + rest)
        (programs / script.name).chmod(0o755)
    shutil.rmtree(target / "bin", ignore_errors=True)


def _tidy(tree: Path) -> None:
    """Drop what describes this machine and what is not needed again; add the ordinary user."""
    for path in ("etc/hostname", "etc/resolv.conf", "etc/machine-id"):
        (tree / path).unlink(missing_ok=True)
    for path in ("var/cache/apt/archives", "var/lib/apt/lists", "var/log"):
        shutil.rmtree(tree / path, ignore_errors=True)
        (tree / path).mkdir(parents=True)
    with (tree / "etc/passwd").open("a") as file:
        file.write(f"{USER}:x:{UID}:{UID}::/home/{USER}:/bin/sh\n")
    with (tree / "etc/group").open("a") as file:
        file.write(f"{USER}:x:{UID}:\n")


async def packed(tree: Path) -> AsyncIterator[bytes]:
    """The tree as a tar archive, piece by piece."""
    without = [f"--exclude={pattern}" for pattern in LEFT_OUT]
    process = await asyncio.create_subprocess_exec(
        *("tar", "--numeric-owner", "--sort=name", *without, "-C", str(tree), "-c", "."),
        stdout=asyncio.subprocess.PIPE,
        limit=4 * CHUNK,
    )
    assert process.stdout is not None
    try:
        while data := await process.stdout.read(CHUNK):
            yield data
        if await process.wait():
            raise SandboxError(f"image: tar ended with status {process.returncode}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _run(command: Sequence[str], on_line: OnLine) -> None:
    """Run a program to its end, and no longer than we live ourselves."""
    tied = ("setpriv", "--pdeathsig", "KILL", *command) if shutil.which("setpriv") else command
    # pip keeps its settings in the environment and below HOME; nothing else needs any.
    process = await asyncio.create_subprocess_exec(
        *tied,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
    )
    assert process.stdout is not None
    last: deque[str] = deque(maxlen=8)
    try:
        async for raw in process.stdout:
            line = raw.decode("utf-8", "replace").strip()
            if line:
                last.append(line)
                on_line(line)
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status:
        name = next((part for part in command if part in ("debootstrap", "pip")), command[0])
        said = [line for line in last if line.startswith(("E:", "ERROR:"))] or list(last)
        missing = "No module named pip" in " ".join(last)
        kind = SandboxUnavailable if missing else SandboxError
        raise kind(f"image: {name} ended with status {status}: {' | '.join(said) or 'no word'}")
