"""Files that are either whole or not there, whatever happens while they are written.

Also where the files of a user are that outlive a run: the cache.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary neighbour of `path`, which takes its place when the block ends well.

    The bytes are on the disk before the name is, and the name before this returns. Two writers of
    one path do not meet: each has its own temporary file, and the last to finish wins. A kill
    leaves a file that `is_temporary` knows.

    Raises:
        OSError: as while writing (a full disk, no permission); `path` stays as it was and nothing
            is left behind.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
    except BaseException:
        # Also on cancellation and Ctrl-C: the half file goes, the exception stays.
        temporary.unlink(missing_ok=True)
        raise
    flush(path.parent)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file so that a reader sees the old or the new content and nothing between.

    Raises:
        OSError: see `replacing`.
    """
    with replacing(path) as temporary, temporary.open("xb") as file:
        file.write(data)


def append_line(path: Path, line: bytes) -> None:
    """Append a line in one system call, so that lines of two writers do not mix.

    A line is on the disk when this returns. One that a kill or a full disk tore does not swallow
    it.

    Args:
        path: the file; made with the first line.
        line: without its end.

    Raises:
        OSError: it is not there, or only a part of it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        end = os.lseek(descriptor, 0, os.SEEK_END)
        torn = end > 0 and os.pread(descriptor, 1, end - 1) != b"\n"
        whole = (b"\n" if torn else b"") + line + b"\n"
        if os.write(descriptor, whole) != len(whole):
            raise OSError(f"{path}: the disk took only part of a line")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_plain(path: Path) -> Path:
    """The path itself, once it is a file that can be read to its end.

    A pipe or a terminal would be waited for, and a device gives bytes for ever.

    Raises:
        OSError: it is not there, or something else.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kinds = {
            stat.S_IFDIR: "a folder",
            stat.S_IFIFO: "a named pipe",
            stat.S_IFSOCK: "a socket",
        }
        raise OSError(f"{kinds.get(stat.S_IFMT(mode), 'a device')}, not a plain file")
    return path


def is_temporary(path: Path) -> bool:
    """A writer that was killed may have left this file."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def cache_dir() -> Path:
    """`$AGENTRL_CACHE`, else `$XDG_CACHE_HOME/agentrl`, else `~/.cache/agentrl`."""
    if root := os.environ.get("AGENTRL_CACHE"):
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl"


def flush(path: Path) -> None:
    """Bring a file, or the names in a folder, onto the disk.

    Some network file systems refuse that for a folder; there is nothing more to do there.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
