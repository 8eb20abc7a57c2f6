"""Users of sandboxes on the host: ids for the real root, and counts of an ordinary user."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

FIRST_UID = 1_879_048_192
"""Far from any user of a real machine, and below 2**31."""


def is_root() -> bool:
    """True if we may become other users."""
    return os.geteuid() == 0


def program_uid(number: int) -> int:
    """A user id for the `number`th sandbox of this process, different from its neighbours'.

    Processes are counted per user id, so sandboxes must not share one. In a container that owns few
    ids, the last of those it has are taken.
    """
    spread = (os.getpid() * 1009 + number) % 50_000_000
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    last = max(int(start) + int(length) for start, _, length in ranges) - 1
    if last >= FIRST_UID + 50_000_000:
        return FIRST_UID + spread
    few = max(1, min(30_000, last - 1000))
    return last - 1 - spread % few if last > 2 else last


def started(pid: int) -> int:
    """The start of a process in clock ticks since boot; 0 when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    # A zombie is dead, it only has not been asked for its status.
    return 0 if fields[0] in "ZX" else int(fields[19])


def process_namespace() -> str:
    """The namespace in which our process ids mean something."""
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def counts_by_namespace() -> bool:
    """True if this kernel counts processes per user namespace (Linux 5.14 and newer)."""
    match = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return bool(match) and (int(match[1]), int(match[2])) >= (5, 14)


_counted: tuple[float, int] = (0.0, 0)


def threads_of_user() -> int:
    """Processes and threads of our user right now; looked up at most once a second."""
    global _counted
    now = time.monotonic()
    if now - _counted[0] > 1.0 or not _counted[1]:
        total = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                total += _threads(entry / "status")
        _counted = (now, total)
    return _counted[1]


def _threads(status: Path) -> int:
    try:
        text = status.read_text(errors="replace")
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    if int(fields["Uid"].split()[0]) != os.getuid():
        return 0
    return int(fields["Threads"])
