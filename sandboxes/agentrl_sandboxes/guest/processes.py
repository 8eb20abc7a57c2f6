"""Looking at and ending processes through /proc; standard library only."""

# ruff: noqa: PTH - pathlib takes longer to import than a sandbox takes to start
from __future__ import annotations

import os

SIGKILL, SIGCONT, SIGSTOP = 9, 18, 19
"""`signal` imports `enum`, which costs more than all the rest."""


def read_text(path: str) -> str:
    """A file of /proc; empty when the process is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(65536).decode("utf-8", "replace")
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """Children of all threads of a process."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    if not os.path.exists("/proc/self/task/%d/children" % os.getpid()):
        return [p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(p) == pid]
    return [int(p) for t in threads for p in read_text(f"/proc/{pid}/task/{t}/children").split()]


def parent(pid: int) -> int:
    """Parent of a process; 0 when it is gone."""
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def descendants(pid: int) -> list[int]:
    """Everything below a process."""
    found: list[int] = []
    queue = children(pid)
    while queue:
        child = queue.pop()
        found.append(child)
        queue += children(child)
    return found


def send_signal(pid: int, number: int) -> None:
    """Signal a process that may be gone."""
    try:
        os.kill(pid, number)
    except OSError:
        return


def kill_below(pid: int) -> None:
    """Kill what is below a process. Stops all of it first, or a fork bomb would outrun us."""
    stopped: set[int] = set()
    for _ in range(50):
        fresh = set(descendants(pid)) - stopped
        if not fresh:
            break
        for child in fresh:
            send_signal(child, SIGSTOP)
        stopped |= fresh
    for child in stopped:
        send_signal(child, SIGKILL)


def memory_of(pids: list[int], limit: int) -> int:
    """Bytes held by processes together; shared pages count once if the plain sum is too large."""
    plain = {pid: 0 for pid in pids}
    for pid in pids:
        for line in read_text(f"/proc/{pid}/status").splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                plain[pid] += int(line.split()[1]) * 1024
    total = sum(plain.values())
    if total <= limit:
        return total
    total = 0
    for pid in pids:
        lines = read_text(f"/proc/{pid}/smaps_rollup").splitlines()
        shares = [int(x.split()[1]) for x in lines if x.startswith(("Pss_Anon:", "Pss_Shmem:"))]
        total += sum(shares) * 1024 if shares else plain[pid]
    return total
