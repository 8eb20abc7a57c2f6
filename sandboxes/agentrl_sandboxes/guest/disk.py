"""Measuring and deleting trees, of any shape that a program can make."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from collections.abc import Collection

ENTRY = 1024
"""Bytes that a file counts on top of its content: an inode and a name."""
DEEP = 40
"""How many directories deep a tree is deleted in place."""
SHARED = ("/tmp", "/var/tmp", "/dev/shm")
"""Places of a machine that every user may write to."""


def tree_bytes(path: str) -> int:
    """Bytes on disk below a path, as far as it can be read; a hard link counts once.

    Files without content count as well, or there could be any number of them.
    """
    total = 0
    linked: set[int] = set()
    queue = [path]
    while queue:
        try:
            with os.scandir(queue.pop()) as found:
                for item in found:
                    info = item.stat(follow_symlinks=False)
                    if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
                        if info.st_ino in linked:
                            continue
                        linked.add(info.st_ino)
                    total += info.st_blocks * 512 + ENTRY
                    if item.is_dir(follow_symlinks=False):
                        queue.append(item.path)
        except OSError:
            continue
    return total


def mounted_bytes(places: list[str]) -> int:
    """Bytes in use on the file systems mounted at `places`."""
    total = 0
    for place in places:
        try:
            info = os.statvfs(place)
        except OSError:
            continue
        total += (info.f_blocks - info.f_bfree) * info.f_frsize
    return total


def wipe(path: str) -> None:
    """Delete a tree, whatever permissions the program left on it."""
    empty(path)
    try:
        os.rmdir(path)
    except OSError:
        return


def wipe_shared(uid: int, places: Collection[str] = SHARED) -> None:
    """Delete what a user left in places that all users share; none of its processes may be left.

    Args:
        uid: of programs of one sandbox alone.
        places: directories in which nobody can rename the files of another.
    """
    for place in places:
        try:
            with os.scandir(place) as found:
                left = [item for item in found if item.stat(follow_symlinks=False).st_uid == uid]
        except OSError:
            continue
        for item in left:
            try:
                if item.is_dir(follow_symlinks=False):
                    wipe(item.path)
                else:
                    os.unlink(item.path)
            except OSError:
                continue


def empty(path: str, keep: Collection[str] = ()) -> None:
    """Delete what is in a directory, as far as it can be deleted, except what is in `keep`.

    A tree may be deeper than a path can be long: what lies too deep is moved up and has its turn.
    """
    while empty_below(path, path, 0, keep):
        pass


def empty_below(top: str, path: str, depth: int, keep: Collection[str]) -> int:
    """Delete what is in `path`, and itself below the top; how many directories were moved up."""
    moved = 0
    for item in entries_of(path):
        try:
            if item.path in keep:
                continue
            if not item.is_dir(follow_symlinks=False):
                os.unlink(item.path)
            elif depth < DEEP:
                moved += empty_below(top, item.path, depth + 1, keep)
            else:
                # Moving a directory writes to it.
                os.chmod(item.path, 0o700)
                os.rename(item.path, f"{top}/.{os.urandom(8).hex()}")
                moved += 1
        except OSError:
            continue
    try:
        if depth:
            os.rmdir(path)
    except OSError:
        return moved
    return moved


def left_in(path: str, keep: Collection[str]) -> list[str]:
    """Paths in a directory besides `keep` and the directories that lead there."""
    found: list[str] = []
    for item in entries_of(path):
        if any(place.startswith(item.path + "/") for place in keep):
            found += left_in(item.path, keep)
        elif item.path not in keep:
            found.append(item.path)
    return found


def entries_of(path: str) -> list[os.DirEntry[str]]:
    """Entries of a directory, which is made accessible first if it is ours and is not."""
    try:
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            os.chmod(path, 0o700)
        with os.scandir(path) as found:
            return list(found)
    except OSError:
        return []
