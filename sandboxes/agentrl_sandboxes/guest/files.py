"""Reading and writing files of the work directory, and nothing outside it.

The program may swap a directory for a symbolic link at any moment, and may leave any number of
links. So a path is walked here, one open directory after the other, without recursion and with a
bound on links; what was found is judged by the name the kernel has for the descriptor. Paths are
bytes, because a program may give a file any name.
"""

from __future__ import annotations

import errno
import os
import stat

from agentrl_sandboxes.guest.wire import TOO_LARGE

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from typing import Any

LINKS = 40
"""Symbolic links that are followed on the way to one file, as many as the kernel follows."""
NAMES = 4096
"""Names on the way to one file, those of links included."""


def inside(root: bytes, path: bytes) -> bool:
    """True if a resolved path is the root or below it."""
    return path == root or path.startswith(root.rstrip(b"/") + b"/")


def outside_error(path: bytes) -> PermissionError:
    """The error of a path that leads out of the work directory."""
    name = path.decode("utf-8", "replace")
    return PermissionError(errno.EACCES, f"{name!r} leads out of the work directory")


def place_of(fd: int) -> bytes:
    """The path of an open file, as the kernel has it."""
    return os.readlink(b"/proc/self/fd/%d" % fd)


def check_fd(root: bytes, fd: int, path: bytes) -> None:
    """Refuse a descriptor that is not below the root, closing it."""
    if not inside(root, place_of(fd)):
        os.close(fd)
        raise outside_error(path)


class Walk:
    """The way to a file below a root: an open directory, and a name in it that is no link.

    Use in a `with` block, which closes the directory. `name` is `.` for the directory itself. The
    walk may pass places outside the root, but makes nothing there, and does not end there.
    """

    def __init__(self, root: bytes, path: bytes, *, make: bool = False) -> None:
        """Follow `path`, which is taken as relative to `root`.

        Args:
            root: the resolved path of a directory.
            path: may lead through links; the last name need not exist.
            make: whether to make directories that are missing on the way.

        Raises:
            PermissionError: it leads out of the root, or through too many links or names.
            OSError: a directory on the way is missing or is none.
        """
        self.root = root
        self.path = path
        self.name = b"."
        if make and not os.path.lexists(root):
            # The program has removed its work directory.
            os.makedirs(root, 0o755, exist_ok=True)
        self.fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
        try:
            self.follow(make)
            here = place_of(self.fd)
            if not inside(root, here if self.name == b"." else os.path.join(here, self.name)):
                raise outside_error(path)
        except BaseException:
            os.close(self.fd)
            raise

    def __enter__(self) -> Walk:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def follow(self, make: bool) -> None:
        """Go down name by name, until only one that is no link is left."""
        rest = self.expanded(self.path)
        links = steps = 0
        while rest:
            name = rest.pop()
            steps += 1
            target = None if name in (b".", b"..") else self.link(name)
            if target is not None:
                links += 1
                rest += self.expanded(target)
            elif rest or name in (b".", b".."):
                self.enter(name, make)
            else:
                self.name = name
            if links > LINKS or steps + len(rest) > NAMES:
                raise PermissionError(errno.EACCES, "leads through too many links or directories")

    def expanded(self, path: bytes) -> list[bytes]:
        """The names of a path, the last one first; goes to `/` if it is absolute."""
        if path.startswith(b"/"):
            self.move(os.open(b"/", os.O_PATH | os.O_DIRECTORY))
        found = [name for name in path.split(b"/") if name]
        # A slash at the end stands for the directory itself.
        return ([b"."] if path.endswith(b"/") else []) + found[::-1]

    def link(self, name: bytes) -> bytes | None:
        """The target of a link; None for everything else, also for what is missing."""
        try:
            return os.readlink(name, dir_fd=self.fd)
        except OSError:
            return None

    def enter(self, name: bytes, make: bool) -> None:
        """Go into a directory, which is made if it may be."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
        try:
            try:
                found = os.open(name, flags, dir_fd=self.fd)
            except FileNotFoundError:
                if not make or not inside(self.root, place_of(self.fd)):
                    raise
                os.mkdir(name, 0o755, dir_fd=self.fd)
                found = os.open(name, flags, dir_fd=self.fd)
        except OSError:
            if not inside(self.root, place_of(self.fd)):
                raise outside_error(self.path) from None
            raise
        self.move(found)

    def move(self, fd: int) -> None:
        """Be in another directory."""
        os.close(self.fd)
        self.fd = fd

    def full(self) -> bytes:
        """The path it has led to."""
        return os.path.normpath(os.path.join(place_of(self.fd), self.name))


def read(root: bytes, request: dict[str, Any]) -> bytes:
    """Content of a regular file of at most `max_bytes`."""
    with Walk(root, request["path"]) as way:
        kind = os.stat(way.name, dir_fd=way.fd, follow_symlinks=False).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        if not stat.S_ISREG(kind):
            raise PermissionError(errno.EACCES, "is not a regular file")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        fd = os.open(way.name, flags, dir_fd=way.fd)
    try:
        info = os.fstat(fd)
        # The program may have put something else there since.
        data = drain(fd, request["max_bytes"] + 1) if stat.S_ISREG(info.st_mode) else b""
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


def write(root: bytes, request: dict[str, Any]) -> bytes:
    """Write one file, through symbolic links only where they stay inside."""
    if request["path"].endswith(b"/"):
        raise IsADirectoryError(errno.EISDIR, "is a directory")
    with Walk(root, request["path"], make=True) as way:
        put(way.fd, way.name, request["data"], None)
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
