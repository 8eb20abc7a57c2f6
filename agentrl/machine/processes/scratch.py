"""The temporary folder of one process tree, and what the tree leaves in shared memory.

    FOLDER/              TMPDIR of the tree, locked by the owner of the tree as long as it lives
    FOLDER/.segments     files in /dev/shm that the tree has used: inode and name of each

Both are removed together once the tree has ended: by the owner, or, where the owner was killed, by
the next `sweep`. Sockets and files lie in the folder. Segments and semaphores have no folder, and
their names say nothing of who made them; so a file counts as the tree's if it appeared while the
tree ran and a process of the tree had it mapped or open. `KILL -9` reaches the maker of a segment
before it can unlink it, and a segment of a vLLM server is 160 MiB of memory.

No file that a living process has mapped or open is removed, and no folder of a tree of which a
process lives: only its record says which files are the tree's. The limit: what is made and left
within one look (`tree.py` looks four times a second) is not seen.

Made of the standard library alone: `tree.py` imports it as a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "tree-of-agentrl-"
_RECORD = ".segments"
_SOCKET_PATH_BYTES = 107
"""The longest path of a Unix socket."""
_LONGEST_NAME = 60
"""Bytes that the tree may append to the folder: vLLM appends 37, multiprocessing 33."""
_UNCLEAR_S = 5.0
"""A new file that no process of the tree has used so long is another program's."""
_BEING_MADE_S = 60.0
"""A folder without a record is left alone so long: its owner may be about to lock it."""


class SharedFile(NamedTuple):
    """One file in /dev/shm: a segment or a semaphore."""

    inode: int
    """A name may be given again, its inode is another one."""
    name: str


class ScratchFolder:
    """Folder and segments of the tree below this process; made here, locked until it ends."""

    def __init__(self) -> None:
        """Make the folder, and count what /dev/shm has now as of others.

        Raises:
            OSError: no folder can be made.
        """
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base()))
        # Not inherited over exec: the lock ends with this process, whatever it leaves running.
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.path / _RECORD).touch()
        if torch_cache().is_dir():
            (self.path / torch_cache().name).symlink_to(torch_cache())
        self._others = set(_segments())
        self._ours: set[SharedFile] = set()
        self._unclear: dict[SharedFile, float] = {}
        """New files of which it is not known who uses them, and since when."""

    def look(self, tree: Callable[[], Iterable[int]]) -> None:
        """Record new files in /dev/shm that processes of the tree use.

        Args:
            tree: returns the process ids; called only if there are new files.
        """
        now = time.monotonic()
        new = set(_segments()) - self._others - self._ours
        self._unclear = {segment: self._unclear.get(segment, now) for segment in new}
        if not new:
            return
        used = _used_by(tree())
        found = {segment for segment in new if segment.inode in used}
        if found:
            self._ours |= found
            lines = [b"%d %s\n" % (file.inode, os.fsencode(file.name)) for file in sorted(found)]
            # On a full disk the files are still known here.
            with contextlib.suppress(OSError), (self.path / _RECORD).open("ab") as record:
                record.write(b"".join(lines))
        old = {segment for segment in new if now - self._unclear[segment] > _UNCLEAR_S}
        self._others |= old - found

    def remove(self) -> None:
        """Remove folder and segments; the tree has ended."""
        _remove_segments(self._ours)
        _remove_folder(self.path)
        os.close(self._lock)


def base() -> Path:
    """The folder for temporary files, or /tmp if paths of sockets in that would be too long."""
    folder = Path(tempfile.gettempdir())
    longest = len(os.fsencode(folder)) + 1 + len(PREFIX) + 8 + 1 + _LONGEST_NAME
    return folder if longest <= _SOCKET_PATH_BYTES else Path("/tmp")


def torch_cache() -> Path:
    """The folder in which torch keeps compiled code: it outlives a tree, which finds a link to it.

    Torch names a variable for it, and ignores it for compiled headers, which take half a minute.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry in the list of users
        user = f"uid_{os.getuid()}"
    return Path(tempfile.gettempdir()) / f"torchinductor_{user.replace('/', '_')}"


def sweep() -> list[Path]:
    """Remove what trees have left whose owner was killed; returns their folders.

    A tree of which a process still runs is left for a later call.
    """
    return [folder for folder in sorted(base().glob(f"{PREFIX}*")) if _sweep(folder)]


def _sweep(folder: Path) -> bool:
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False  # removed meanwhile, or another user's
    try:
        status = os.fstat(lock)
        if status.st_uid != os.geteuid():
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        record = folder / _RECORD
        if not record.exists() and time.time() - status.st_mtime < _BEING_MADE_S:
            return False
        segments = _recorded(record)
        if _in_use(folder, segments):
            return False
        _remove_segments(segments)
        _remove_folder(folder)
    except OSError:
        return False  # its owner lives, or it holds what cannot be read
    finally:
        os.close(lock)
    return True


def _recorded(record: Path) -> set[SharedFile]:
    try:
        lines = record.read_bytes().split(b"\n")
    except FileNotFoundError:
        return set()
    # The owner may have been killed while it wrote the last line, or the disk have been full.
    words = [line.partition(b" ") for line in lines]
    return {
        SharedFile(int(inode), os.fsdecode(name)) for inode, _, name in words if inode.isdigit()
    }


def _segments() -> list[SharedFile]:
    """All files in /dev/shm; none where it cannot be read."""
    found: list[SharedFile] = []
    with contextlib.suppress(OSError), os.scandir(SHARED_MEMORY) as entries:
        found = [SharedFile(entry.inode(), entry.name) for entry in entries]
    return found


def _remove_segments(segments: set[SharedFile]) -> None:
    left = segments & set(_segments())
    if not left:
        return
    used = _used_by(_processes())
    for segment in left:
        if segment.inode not in used:
            # A tracker of multiprocessing may be faster, and a name may have become a folder.
            with contextlib.suppress(OSError):
                (SHARED_MEMORY / segment.name).unlink()


def _remove_folder(folder: Path) -> None:
    import shutil  # takes longer to import than all else here

    shutil.rmtree(folder, ignore_errors=True)


def _processes() -> list[int]:
    """Process ids of all that live; none where there is no /proc."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _used_by(processes: Iterable[int]) -> set[int]:
    """Inodes of the files in /dev/shm that these have mapped or open.

    By inode and not by name: a semaphore is made under another name than it gets.
    """
    try:
        device = SHARED_MEMORY.stat().st_dev
    except OSError:
        return set()
    mark = f"{os.major(device):02x}:{os.minor(device):02x}"
    used: set[int] = set()
    for process in processes:
        used |= _mapped(process, mark) | _opened(process)
    return used


def _mapped(process: int, mark: str) -> set[int]:
    try:
        lines = Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()  # it has ended, or is another user's
    # address permissions offset device inode path
    words = [line.split(None, 5) for line in lines if mark in line]
    return {int(word[4]) for word in words if word[3] == mark}


def _opened(process: int) -> set[int]:
    used: set[int] = set()
    for link in _descriptors(process):
        # Nothing else is looked at: a file on a disk that hangs would hold up who asks.
        if _target(link).startswith(f"{SHARED_MEMORY}/"):
            with contextlib.suppress(OSError):  # closed meanwhile
                used.add(link.stat().st_ino)
    return used


def _target(link: Path) -> str:
    """What a link of /proc names; nothing if it is gone, or another user's."""
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _descriptors(process: int) -> list[Path]:
    folder = Path(f"/proc/{process}/fd")
    try:
        return list(folder.iterdir())
    except OSError:
        return []  # it has ended, or is another user's


def _in_use(folder: Path, segments: set[SharedFile]) -> bool:
    """A process of the tree lives, as far as /proc shows it.

    It was started with the folder as its TMPDIR, works in it, has a file of it open or a socket
    with an address in it, or uses one of the segments.
    """
    inside = f"{folder}/"
    # Without /proc nothing can be known, and nothing was recorded either.
    with contextlib.suppress(OSError):
        if inside in Path("/proc/net/unix").read_text(errors="replace"):
            return True
    processes = _processes()
    if _used_by(processes) & {segment.inode for segment in segments}:
        return True
    return any(
        _lives_in(process, folder)
        or any(_target(link).startswith(inside) for link in _descriptors(process))
        for process in processes
    )


def _lives_in(process: int, folder: Path) -> bool:
    inside = f"{folder}/"
    if f"{_target(Path(f'/proc/{process}/cwd'))}/".startswith(inside):
        return True
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or is another user's
    mark = os.fsencode(f"TMPDIR={inside}")
    return any((variable + b"/").startswith(mark) for variable in variables)
