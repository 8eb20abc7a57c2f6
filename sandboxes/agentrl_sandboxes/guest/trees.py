"""Whole trees of the work directory, on their way in and out.

What comes out is bounded by a number of bytes before it is read: a file of holes has any size.
Permissions do not hinder it, or a program could keep its work from being looked at. A program may
run beside us: what is gone, or another kind of thing, since it was listed is passed over.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat

from agentrl_sandboxes.guest.files import Walk, check_fd, drain, put
from agentrl_sandboxes.guest.wire import MEMBER, TOO_LARGE

_CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)
"""Errors of an entry that is gone, or no directory, file or link any more."""

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from collections.abc import Iterator
    from typing import Any

Entry = tuple[bytes, str, int, bytes]
"""Path below the root of the tree, kind (`d`, `f` or `l`), permission bits, content or target."""


class Unlocked:
    """Makes directories and files accessible as they are met, until the end of a `with` block."""

    def __init__(self) -> None:
        self.modes: list[tuple[bytes, int]] = []

    def __enter__(self) -> Unlocked:
        return self

    def __exit__(self, *_: object) -> None:
        for path, mode in reversed(self.modes):
            try:
                os.chmod(path, mode)
            except OSError:
                continue

    def open(self, path: bytes, wanted: int) -> None:
        """Change the mode if the wanted kinds of access are not there."""
        if not os.access(path, wanted, effective_ids=os.geteuid() != os.getuid()):
            mode = stat.S_IMODE(os.lstat(path).st_mode)
            os.chmod(path, mode | 0o700)
            self.modes.append((path, mode))

    def listed(self, root: bytes, place: bytes) -> list[os.DirEntry[bytes]]:
        """Entries of a directory below `root`, sorted by name; none if it has changed since."""
        path = os.path.join(root, place)
        try:
            self.open(path, os.R_OK | os.X_OK)
            with os.scandir(path) as found:
                return sorted(found, key=lambda item: item.name)
        except OSError as error:
            if place and error.errno in _CHANGED:
                return []
            raise

    def content(self, root: bytes, path: bytes, left: int) -> bytes:
        """Content of a regular file of at most `left` bytes."""
        self.open(path, os.R_OK)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
        check_fd(root, fd, path)
        try:
            data = drain(fd, left + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        finally:
            os.close(fd)
        if len(data) > left:
            raise OSError(TOO_LARGE, "is larger than wanted")
        return data


def pack(root: bytes, request: dict[str, Any]) -> bytes:
    """The whole work directory as marshalled entries; sockets and pipes are left out."""
    try:
        # The program may have put a link in the place of its work directory.
        with Walk(root, b"."), Unlocked() as unlocked:
            found = pack_tree(root, request["max_bytes"], unlocked)
            return marshal.dumps([entry for entry in found if entry[1] != "s"], 2)
    except OSError as error:
        raise too_deep(error) from error


def pack_tree(root: bytes, left: int, unlocked: Unlocked, links: bool = True) -> Iterator[Entry]:
    """Directories (before what is in them), files and links below `root`; others as kind `s`."""
    queue = [b""]
    while queue:
        place = queue.pop()
        for item in unlocked.listed(root, place):
            try:
                if item.is_symlink() and not links:
                    continue
                kind, mode, content = pack_item(root, item, left, unlocked)
            except OSError as error:
                if error.errno in _CHANGED:
                    continue
                raise
            path = os.path.join(place, item.name)
            if kind == "d":
                queue.append(path)
            yield path, kind, mode, content
            left -= len(content)


def pack_item(
    root: bytes, item: os.DirEntry[bytes], left: int, unlocked: Unlocked
) -> tuple[str, int, bytes]:
    """Kind, permission bits, and content or target of one entry."""
    mode = stat.S_IMODE(item.stat(follow_symlinks=False).st_mode)
    if item.is_symlink():
        return "l", mode, os.readlink(item.path)
    if item.is_dir(follow_symlinks=False):
        return "d", mode, b""
    if item.is_file(follow_symlinks=False):
        return "f", mode, unlocked.content(root, item.path, left)
    return "s", mode, b""


def fetch(root: bytes, request: dict[str, Any]) -> bytes:
    """The regular files at or below a path, packed by hand for the host: `MEMBER`, name, content.

    Names are relative to the path; that of a single file is its last component. With `whole`, all
    that is in a directory, and itself.
    """
    try:
        with Walk(root, request["path"]) as way, Unlocked() as unlocked:
            left, whole = request["max_bytes"], request.get("whole", False)
            return fetch_tree(root, way.full(), left, unlocked, whole)
    except OSError as error:
        raise too_deep(error) from error


def too_deep(error: OSError) -> OSError:
    """A tree too deep for any path is one that is too large."""
    if error.errno != errno.ENAMETOOLONG:
        return error
    return OSError(TOO_LARGE, "has directories too deep for any path")


def fetch_tree(root: bytes, top: bytes, left: int, unlocked: Unlocked, whole: bool) -> bytes:
    """As `fetch`, from a resolved path."""
    # Names count on their own, so that files of `max_bytes` together can be had.
    names_left = 2**24
    answer = bytearray()
    for path, kind, mode, content in entries_at(root, top, left, unlocked, whole):
        if kind != "f" and not whole:
            continue
        names_left -= len(path) + MEMBER.size
        if names_left < 0:
            raise OSError(TOO_LARGE, "has more than 16 MiB of file names")
        answer += MEMBER.pack(kind.encode(), mode, len(path), len(content)) + path + content
    return bytes(answer)


def entries_at(
    root: bytes, top: bytes, left: int, unlocked: Unlocked, whole: bool
) -> Iterator[Entry]:
    """Entries below a directory, with `whole` after itself; a single file under its own name."""
    info = os.stat(top)
    mode = stat.S_IMODE(info.st_mode)
    if stat.S_ISDIR(info.st_mode):
        yield b"", "d", mode, b""
        yield from pack_tree(top, left, unlocked, whole)
    elif whole:
        raise NotADirectoryError(errno.ENOTDIR, "is not a directory")
    else:
        yield os.path.basename(top), "f", mode, unlocked.content(root, top, left)


def unpack(root: bytes, request: dict[str, Any]) -> bytes:
    """Lay out marshalled entries below `target`; directories get their modes when they are full."""
    entries: list[Entry] = marshal.loads(request["entries"])
    target: bytes = request["target"]
    modes: list[tuple[bytes, int]] = []
    for path, kind, mode, content in entries:
        where = os.path.join(target, path) if path else target
        if kind == "d":
            with Walk(root, os.path.join(where, b"."), make=True):
                modes.append((where, mode))
            continue
        with Walk(root, os.path.join(os.path.dirname(where), b"."), make=True) as way:
            name = os.path.basename(where)
            if kind == "l":
                os.symlink(content, name, dir_fd=way.fd)
            else:
                put(way.fd, name, content, mode)
    for where, mode in reversed(modes):
        with Walk(root, os.path.join(where, b"."), make=True) as way:
            os.chmod(b".", mode, dir_fd=way.fd)
    return b""
