"""Memory that belongs to no process: objects of System V, buffers of sockets, inodes of a tmpfs.

The kernel charges these to a cgroup. Where there is none they are counted here, from what the
kernel says about the namespaces of the sandbox; what it says nothing about, the filter forbids.
"""

from __future__ import annotations

import ctypes
import os
import struct

from agentrl_sandboxes.guest.processes import read_text
from agentrl_sandboxes.guest.reset import ipc_objects, libc

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from collections.abc import Iterator

PAGE = os.sysconf("SC_PAGESIZE")
SHM_INFO, SEM_INFO, MSG_INFO = 14, 19, 12
SEMAPHORE, MESSAGE, OBJECT = 64, 96, 1024
"""Bytes of kernel memory for a semaphore, a message beside its text, and whatever holds them
(`struct sem` fills a cache line; `msg_msg` and its slab)."""
INODE = 1024
"""Bytes that an inode of a tmpfs and its name take; also what the kernel counts an attribute as
(`BOGO_INODE_SIZE` of mm/shmem.c)."""

INET_TABLES = ("tcp", "tcp6", "udp", "udp6", "udplite", "udplite6")
"""Of the other kinds of inet sockets a program without rights has none."""
OVERHEAD = 2
"""How much more memory data in the queue of an inet socket takes than it has bytes."""
UNIX_BUFFER = 212_992
"""Bytes that one unix socket may have on the way (net.core.wmem_default, and its maximum)."""
UNIX_QUEUE = 10
"""Datagrams that may wait at one unix socket (net.unix.max_dgram_qlen)."""

AF_UNIX, AF_NETLINK, SOCK_RAW, SOCK_CLOEXEC, NETLINK_SOCK_DIAG = 1, 16, 3, 0o2000000, 4
SOCK_DGRAM = 2
MSG_DONTWAIT = 0x40
BY_FAMILY, DUMP, DONE, FAILED = 20, 0x301, 3, 2
SHOW_QUEUES, SHOW_MEMORY = 0x10, 0x20
QUEUES, MEMORY = 4, 5
"""Of include/uapi/linux/unix_diag.h."""


def ipc_bytes(creator: int | None) -> tuple[int, int]:
    """Bytes of System V shared memory, and those of semaphores, queues and messages.

    Args:
        creator: user id of the programs, where the namespace is shared; None: those of all.
    """
    info = (ctypes.c_ulong * 16)()
    if libc.shmctl(0, SHM_INFO, info) < 0:
        # A kernel without them.
        return 0, 0
    # struct shm_info: int used_ids; unsigned long shm_tot, shm_rss, shm_swp.
    segments, shared = info[0] & 0xFFFFFFFF, (info[2] + info[3]) * PAGE
    numbers = (ctypes.c_int * 16)()
    # struct seminfo: semusz is the number of sets, semaem that of semaphores.
    libc.semctl(0, 0, SEM_INFO, numbers)
    sets, semaphores = numbers[7], numbers[9]
    numbers = (ctypes.c_int * 16)()
    # struct msginfo: msgpool is the number of queues, msgmap of messages, msgtql of their bytes.
    libc.msgctl(0, MSG_INFO, numbers)
    queues, messages, text = numbers[0], numbers[1], numbers[6]
    if creator is not None and (segments or sets or queues):
        own = list(ipc_objects("shm", creator).values())
        segments, shared = len(own), sum(int(f[14]) + int(f[15]) for f in own if len(f) > 15)
        own = list(ipc_objects("sem", creator).values())
        sets, semaphores = len(own), sum(int(f[3]) for f in own)
        own = list(ipc_objects("msg", creator).values())
        queues, text = len(own), sum(int(f[3]) for f in own)
        messages = sum(int(f[4]) for f in own)
    rest = (segments + sets + queues) * OBJECT + semaphores * SEMAPHORE + messages * MESSAGE + text
    return shared, rest


def sockstat() -> tuple[int, int]:
    """The number of sockets in our network namespace, and pages of all inet sockets of the machine.

    Zeros where the kernel does not say.
    """
    count = pages = 0
    for line in read_text("/proc/net/sockstat").split("\n"):
        words = line.split()
        fields = dict(zip(words[1::2], words[2::2]))
        if words[:1] == ["sockets:"]:
            count = int(fields.get("used", 0))
        elif words[:1] in (["TCP:"], ["UDP:"]):
            pages += int(fields.get("mem", 0))
    return count, pages


class SocketWatch:
    """Counts what waits in the sockets of our network namespace, with as little work as will do."""

    def __init__(self) -> None:
        self.count, self.pages = sockstat()

    def bytes_held(self, worth: int) -> int:
        """Bytes in all sockets that were made since the start.

        Args:
            worth: inet sockets are looked at only when those of the whole machine have grown by so
                many bytes: the kernel walks through its tables of all of them, for 10 ms.
        """
        count, pages = sockstat()
        self.pages = min(self.pages, pages)
        if count <= self.count:
            return 0
        inet = OVERHEAD * inet_bytes() if (pages - self.pages) * PAGE > worth else 0
        return inet + netlink_bytes() + unix_bytes()


def rows(path: str) -> Iterator[list[str]]:
    """The rows of a table of /proc/net, in columns; it may be longer than one read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in list(file)[1:]:
                yield line.split()
    except OSError:
        return


def inet_bytes() -> int:
    """Bytes in the queues of inet sockets, those in flight between two of them included."""
    total = 0
    for name in INET_TABLES:
        for columns in rows(f"/proc/net/{name}"):
            # Another kernel than Linux may fill its tables otherwise.
            sent, colon, received = columns[4].partition(":") if len(columns) > 4 else ("", "", "")
            if colon:
                total += int(sent, 16) + int(received, 16)
    return total


def netlink_bytes() -> int:
    """Bytes in the queues of netlink sockets."""
    found = (columns[4:6] for columns in rows("/proc/net/netlink"))
    return sum(int(size) for sizes in found for size in sizes if size.isdigit())


def unix_bytes() -> int:
    """Bytes in the queues of unix sockets; as many as there may be where the kernel is silent."""
    found = unix_sockets()
    if found is None:
        return UNIX_BUFFER * sum(1 for _ in rows("/proc/net/unix"))
    # What waits is charged to the socket that sent it, and to none when that is closed.
    sent = sum(memory for _, memory, _ in found)
    waiting = sum(
        (UNIX_QUEUE * UNIX_BUFFER if queue else 0) if kind == SOCK_DGRAM else queue
        for kind, _, queue in found
    )
    return max(sent, waiting)


def unix_sockets() -> list[tuple[int, int, int]] | None:
    """Type of each unix socket, bytes charged to it, and bytes in its queue; None if unknown."""
    fd = libc.socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)
    if fd < 0:
        return None
    try:
        # struct unix_diag_req: family, protocol, states, inode, what to show, cookie.
        body = struct.pack(
            "=BBHIIIII", AF_UNIX, 0, 0, 0xFFFFFFFF, 0, SHOW_QUEUES | SHOW_MEMORY, 0, 0
        )
        head = struct.pack("=IHHII", 16 + len(body), BY_FAMILY, DUMP, 1, 0)
        if libc.send(fd, head + body, 16 + len(body), 0) < 0:
            return None
        return answers(fd)
    finally:
        os.close(fd)


def answers(fd: int) -> list[tuple[int, int, int]] | None:
    """Read a dump of unix sockets to its end."""
    found: list[tuple[int, int, int]] = []
    buffer = ctypes.create_string_buffer(2**16)
    while True:
        # The kernel has made the next part before it lets us have this one, so nobody waits.
        size = libc.recv(fd, buffer, len(buffer), MSG_DONTWAIT)
        if size <= 0:
            return None
        data, at = buffer.raw[:size], 0
        while at + 16 <= size:
            length, kind = struct.unpack_from("=IH", data, at)
            if kind == DONE:
                return found
            if kind != BY_FAMILY or length < 16:
                return None
            found.append(unix_socket(data[at + 16 : at + length]))
            at += (length + 3) & ~3


def unix_socket(data: bytes) -> tuple[int, int, int]:
    """Type, charged bytes and queued bytes of one `struct unix_diag_msg` with its attributes."""
    charged = queued = 0
    at = 16
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if kind == MEMORY and length >= 16:
            # SK_MEMINFO_WMEM_ALLOC is the third.
            (charged,) = struct.unpack_from("=I", data, at + 12)
        elif kind == QUEUES and length >= 12:
            (queued,) = struct.unpack_from("=I", data, at + 4)
        at += max(4, (length + 3) & ~3)
    return data[1], charged, queued


def inodes(place: str) -> int:
    """The number of inodes in use on a tmpfs; attributes count as inodes, see `INODE`."""
    try:
        info = os.statvfs(place)
    except OSError:
        return 0
    return max(0, info.f_files - info.f_ffree)
