"""Looking at and ending processes through /proc; standard library only."""

from __future__ import annotations

import os

SIGINT, SIGKILL, SIGCONT, SIGSTOP = 2, 9, 18, 19
"""`signal` imports `enum`, which costs more than all the rest."""
RESIDENT = ("RssAnon:", "RssShmem:", "VmSwap:", "HugetlbPages:", "VmPTE:")
"""What of a process is in memory or has been swapped out, in the words of /proc/PID/status: its
pages, and the tables that find them."""
SHARES = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:", "Private_Hugetlb:")
"""As `RESIDENT`, in the words of /proc/PID/smaps_rollup."""


def read_lines(path: str) -> list[str]:
    """The lines of a file of /proc, where a process may have a name with every other separator."""
    return read_text(path).split("\n")


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
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
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


def threads(pid: int) -> int:
    """The number of threads of a process; a zombie or one that is gone counts as one."""
    try:
        return max(1, len(os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return 1


def send_signal(pid: int, number: int) -> None:
    """Signal a process (or a group, if negative) that may be gone."""
    try:
        os.kill(pid, number)
    except OSError:
        return


def ignores(pid: int, number: int) -> bool:
    """True if a process ignores a signal."""
    for line in read_lines(f"/proc/{pid}/status"):
        if line.startswith("SigIgn:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return True


def kill_below(pid: int) -> None:
    """Kill what is below a process.

    Whole process groups first: that is one call which no fork can slip through, and ends most fork
    bombs. What has left its group is stopped before it is killed, or it would outrun us.
    """
    stopped: set[int] = set()
    for _ in range(50):
        fresh = set(descendants(pid)) - stopped
        if not fresh:
            break
        for child in fresh:
            send_signal(-child, SIGKILL)
            send_signal(child, SIGSTOP)
        stopped |= fresh
    for child in stopped:
        send_signal(child, SIGKILL)


def memory_of(pids: list[int], limit: int) -> int:
    """Bytes held by processes together.

    The plain sum counts what forks share once for each of them. If it is above `limit`, the shares
    decide, taken twice: shares grow in the others while a process exits in between.
    """
    total = sum(map(resident, pids))
    if total <= limit:
        return total
    return min(sum(map(share, pids)), sum(map(share, pids)))


def resident(pid: int) -> int:
    """Bytes of private and shared memory of a process; 0 when it is gone."""
    return kilobytes(f"/proc/{pid}/status", RESIDENT)


def shared(pid: int) -> int:
    """Bytes of the memory that a process shares with others, or might."""
    return kilobytes(f"/proc/{pid}/status", ("RssShmem:",))


def share(pid: int) -> int:
    """As `resident`, but each page divided by the number of processes that map it."""
    return kilobytes(f"/proc/{pid}/smaps_rollup", SHARES) or resident(pid)


def kilobytes(path: str, names: tuple[str, ...]) -> int:
    """Bytes in the named lines of a file of /proc that gives kB."""
    found = (line for line in read_lines(path) if line.startswith(names))
    return sum(int(line.split()[1]) * 1024 for line in found)
