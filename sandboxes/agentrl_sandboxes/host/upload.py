"""Trees of the host on their way into a sandbox."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from agentrl_sandboxes.guest.trees import Entry


def pack_source(source: Path, max_bytes: int) -> list[Entry]:
    """A file or directory as entries; the root itself is the entry with the empty path.

    Raises:
        FileNotFoundError: there is no such source.
        PermissionError: a symbolic link leads out of the tree, or a member is neither file,
            directory nor link.
        OSError: the tree is larger than `max_bytes`.
    """
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(errno.ENOENT, "nothing to upload", str(source))
    if not source.is_dir():
        return [(b"", "f", _mode(source), _content(source, max_bytes))]
    root = source.resolve()
    entries: list[Entry] = [(b"", "d", _mode(root), b"")]
    left = max_bytes
    for place, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(folders) + sorted(names):
            path = Path(place, name)
            inner = os.fsencode(path.relative_to(root))
            if path.is_symlink():
                entries.append((inner, "l", 0o777, _link(path, root)))
            elif path.is_dir():
                entries.append((inner, "d", _mode(path), b""))
            elif path.is_file():
                data = _content(path, left)
                left -= len(data)
                entries.append((inner, "f", _mode(path), data))
            else:
                raise PermissionError(errno.EACCES, "not a file, directory or link", str(path))
    return entries


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) & 0o777


def _content(path: Path, left: int) -> bytes:
    if path.stat().st_size > left:
        raise OSError(errno.ENOSPC, "upload is larger than the disk of the sandbox", str(path))
    return path.read_bytes()


def _link(path: Path, root: Path) -> bytes:
    target = path.readlink()
    if target.is_absolute() or not (path.parent / target).resolve().is_relative_to(root):
        raise PermissionError(errno.EACCES, f"link to {str(target)!r} leaves the tree", str(path))
    return os.fsencode(target)
