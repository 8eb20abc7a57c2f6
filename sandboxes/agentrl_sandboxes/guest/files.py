"""Reading and writing files of the work directory, and nothing outside it.

The program may swap a directory for a symbolic link at any moment, so a path is checked
after it was opened, by the name the kernel has for the descriptor. Paths are bytes, because a
program may give a file any name.
"""

from __future__ import annotations

import errno
import os
import stat

from agentrl_sandboxes.guest.wire import TOO_LARGE

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from typing import Any


def inside(root: bytes, path: bytes) -> bool:
    """True if a resolved path is the root or below it."""
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
        put(directory, os.path.basename(path), request["data"], None)
    finally:
        os.close(directory)
    return b""


def put(directory: int, name: bytes, data: bytes, mode: int | None) -> None:
    """Write a file in an open directory, never through a link: whole, or not at all.

    Without a `mode` it keeps the one it has, and a new one is 644.
    """
    if name in (b".", b".."):
        raise IsADirectoryError(errno.EISDIR, "is a directory")
    if mode is None:
        mode = mode_of(directory, name)
    # Not to be guessed, or a program could be there first.
    draft = b".agentrl-" + os.urandom(8).hex().encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    fd = os.open(draft, flags, 0o600, dir_fd=directory)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fchmod(fd, mode)
        os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        os.unlink(draft, dir_fd=directory)
        raise
    finally:
        os.close(fd)


def mode_of(directory: int, name: bytes) -> int:
    """Permission bits of a regular file, or those of a new one."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0o644
    return stat.S_IMODE(found) if stat.S_ISREG(found) else 0o644
