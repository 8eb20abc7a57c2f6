"""Reading, writing, packing and unpacking files of the work directory, and nothing outside it.

The program may swap a directory for a symbolic link at any moment, so a path is checked
after it was opened, by the name the kernel has for the descriptor. Paths are bytes, because a
program may give a file any name.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat

from agentrl_sandboxes.guest.wire import PACK, READ, TOO_LARGE, UNPACK, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from collections.abc import Callable
    from typing import Any

Entry = tuple[bytes, str, int, bytes]
"""Path below the root of the tree, kind (`d`, `f` or `l`), permission bits, content or target."""


def inside(root: bytes, path: bytes) -> bool:
    """Whether a resolved path is the root or below it."""
    return path == root or path.startswith(root.rstrip(b"/") + b"/")


def outside_error(path: bytes) -> PermissionError:
    """The error of a path that leads out of the work directory."""
    name = path.decode("utf-8", "replace")
    return PermissionError(errno.EACCES, f"{name!r} leads out of the work directory")


def check_fd(root: bytes, fd: int, path: bytes) -> None:
    """Refuse a descriptor that is not below the root, closing it."""
    if not inside(root, os.readlink(b"/proc/self/fd/%d" % fd)):
        os.close(fd)
        raise outside_error(path)


def read(root: bytes, request: dict[str, Any]) -> bytes:
    """Content of a regular file of at most `max_bytes`."""
    path = os.path.join(root, request["path"])
    if not inside(root, os.path.realpath(path)):
        raise outside_error(request["path"])
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    check_fd(root, fd, request["path"])
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        if not stat.S_ISREG(info.st_mode):
            raise PermissionError(errno.EACCES, "is not a regular file")
        data = drain(fd, request["max_bytes"] + 1)
    finally:
        os.close(fd)
    if len(data) > request["max_bytes"]:
        raise OSError(TOO_LARGE, f"has {max(info.st_size, len(data))} bytes")
    return data


def drain(fd: int, most: int) -> bytes:
    """Up to `most` bytes of an open file."""
    data = bytearray()
    while len(data) < most:
        chunk = os.read(fd, min(2**20, most - len(data)))
        if not chunk:
            break
        data += chunk
    return bytes(data)


def open_directory(root: bytes, path: bytes) -> int:
    """A descriptor of a directory below the root, made with its parents if missing."""
    full = os.path.realpath(os.path.join(root, path))
    if not inside(root, full):
        raise outside_error(path)
    os.makedirs(full, mode=0o755, exist_ok=True)
    fd = os.open(full, os.O_RDONLY | os.O_DIRECTORY)
    check_fd(root, fd, path)
    return fd


def write(root: bytes, request: dict[str, Any]) -> bytes:
    """Write one file, through symbolic links only where they stay inside."""
    path = os.path.join(root, request["path"])
    if os.path.islink(path):
        path = os.path.realpath(path)
    if path.endswith(b"/") or not os.path.basename(path):
        raise IsADirectoryError(errno.EISDIR, "is a directory")
    directory = open_directory(root, os.path.dirname(path))
    try:
        put(directory, os.path.basename(path), request["data"], 0o644)
    finally:
        os.close(directory)
    return b""


def put(directory: int, name: bytes, data: bytes, mode: int) -> None:
    """Write a file in an open directory, never through a link. A failed write leaves no half."""
    if name in (b".", b".."):
        raise IsADirectoryError(errno.EISDIR, "is a directory")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fchmod(fd, mode)
    except OSError:
        os.unlink(name, dir_fd=directory)
        raise
    finally:
        os.close(fd)


def pack(root: bytes, request: dict[str, Any]) -> bytes:
    """The whole work directory as marshalled entries; sockets and pipes are left out."""
    return marshal.dumps(pack_tree(root), 2)


def pack_tree(root: bytes) -> list[Entry]:
    """Directories (before what is in them), files and links below `root`."""
    entries: list[Entry] = []
    queue = [b""]
    while queue:
        place = queue.pop(0)
        with readable(os.path.join(root, place)), os.scandir(os.path.join(root, place)) as found:
            items = sorted(found, key=lambda item: item.name)
        for item in items:
            path = os.path.join(place, item.name)
            mode = stat.S_IMODE(item.stat(follow_symlinks=False).st_mode)
            if item.is_symlink():
                entries.append((path, "l", mode, os.readlink(item.path)))
            elif item.is_dir():
                entries.append((path, "d", mode, b""))
                queue.append(path)
            elif item.is_file():
                with readable(item.path), open(item.path, "rb", buffering=0) as file:
                    entries.append((path, "f", mode, file.read()))
    return entries


class readable:
    """Makes a path of our own readable for a moment if it is not."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.mode: int | None = None

    def __enter__(self) -> None:
        if not os.access(self.path, os.R_OK, effective_ids=os.geteuid() != os.getuid()):
            self.mode = stat.S_IMODE(os.lstat(self.path).st_mode)
            os.chmod(self.path, 0o700)

    def __exit__(self, *_: object) -> None:
        if self.mode is not None:
            os.chmod(self.path, self.mode)


def unpack(root: bytes, request: dict[str, Any]) -> bytes:
    """Lay out marshalled entries below `target`; directories get their modes when they are full."""
    entries: list[Entry] = marshal.loads(request["entries"])
    target: bytes = request["target"]
    modes: list[tuple[bytes, int]] = []
    for path, kind, mode, content in entries:
        where = os.path.join(target, path) if path else target
        if kind == "d":
            os.close(open_directory(root, where))
            modes.append((where, mode))
            continue
        directory = open_directory(root, os.path.dirname(where))
        try:
            name = os.path.basename(where)
            if kind == "l":
                os.symlink(content, name, dir_fd=directory)
            else:
                put(directory, name, content, mode)
        finally:
            os.close(directory)
    for where, mode in reversed(modes):
        fd = open_directory(root, where)
        os.fchmod(fd, mode)
        os.close(fd)
    return b""


def tree_bytes(path: str) -> int:
    """Bytes on disk below a path, as far as it can be read."""
    total = 0
    queue = [path]
    while queue:
        try:
            with os.scandir(queue.pop()) as found:
                for item in found:
                    total += item.stat(follow_symlinks=False).st_blocks * 512
                    if item.is_dir(follow_symlinks=False):
                        queue.append(item.path)
        except OSError:
            continue
    return total


def wipe(path: str) -> None:
    """Delete a tree, whatever permissions the program left on it."""
    try:
        os.chmod(path, 0o700)
        with os.scandir(path) as found:
            items = list(found)
    except OSError:
        return
    for item in items:
        try:
            if item.is_dir(follow_symlinks=False):
                wipe(item.path)
            else:
                os.unlink(item.path)
        except OSError:
            continue
    try:
        os.rmdir(path)
    except OSError:
        return


WORK: dict[int, Callable[[bytes, dict[str, Any]], bytes]] = {
    READ: read,
    WRITE: write,
    PACK: pack,
    UNPACK: unpack,
}
"""File work by kind of frame."""
