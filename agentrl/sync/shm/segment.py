"""A block of memory that other processes of this host can map, and that no crash can leave behind.

It is an anonymous file (`memfd_create`), reached by others as `/proc/PID/fd/N`: it has no name, so
the kernel frees it when its owner and all who map it are gone, kill -9 included. Nor is it bounded
by the size of /dev/shm, which is 64 MiB in a container.

    0        header: magic, nonce, version (-1 while it is being written), place of the manifest
    4096     tensors, each aligned
    ...      manifest: JSON records of the tensors
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import SyncError

HEADER = struct.Struct("<8s16sqQQ")
MAGIC = b"agentrl1"
DATA = 4096
"""Offset of the first tensor."""
WRITING = -1
"""The version of a segment that is not whole."""
SLACK = 16 << 20
"""Bytes that a segment may be larger than it need be."""
POPULATE_READ = 22
"""`MADV_POPULATE_READ` of Linux 5.14, which Python does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The first bytes of a segment."""

    nonce: bytes
    """Made by the owner; differs from that of a process that has its id by chance."""
    version: int
    """Of the weights inside, or `WRITING`."""
    manifest_offset: int
    """First byte of the manifest."""
    manifest_bytes: int
    """Length of the manifest."""


def read_header(memory: mmap.mmap) -> SegmentHeader:
    """Read the first bytes of a segment.

    Raises:
        SyncError: it is none.
    """
    magic, nonce, version, offset, size = HEADER.unpack_from(memory)
    if magic != MAGIC:
        raise SyncError(f"not a weight segment: begins with {magic!r}, expected {MAGIC!r}")
    return SegmentHeader(nonce=nonce, version=version, manifest_offset=offset, manifest_bytes=size)


class Segment:
    """A growing segment, for its owner."""

    def __init__(self, nonce: bytes, available: Callable[[], int]) -> None:
        """Make an empty one.

        Args:
            nonce: 16 bytes.
            available: bytes of memory that may still be taken.
        """
        self.fd = os.memfd_create("agentrl-weights", os.MFD_CLOEXEC)
        self.size = 0
        self._nonce = nonce
        self._available = available
        self.reserve(DATA)
        self.write_header(WRITING)

    def reserve(self, size: int) -> None:
        """Have room for `size` bytes; what is inside stays.

        Raises:
            SyncError: there is not so much memory; nothing has changed.
        """
        if size <= self.size:
            return
        check_room(size - self.size, self._available())
        try:
            # Allocated now, since running out of memory while writing would be a bus error.
            os.posix_fallocate(self.fd, 0, size)
        except OSError as error:
            os.ftruncate(self.fd, self.size)
            raise SyncError(
                f"cannot have {size} bytes of shared memory: {error.strerror}; set "
                "`sync.backend: disk`"
            ) from error
        self._map(size)

    def trim(self, size: int) -> None:
        """Release the memory behind `size` bytes, if it is worth it."""
        if self.size - size > SLACK:
            # The mapping stays: its tail is never touched, and a new one would fault in again.
            os.ftruncate(self.fd, size)
            self.data, self.size = self.data[:size], size

    def _map(self, size: int) -> None:
        # Populated at once: a fault for every page costs more than all copies together.
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._memory = mmap.mmap(self.fd, size, flags=flags)
        self.data: Tensor = torch.frombuffer(self._memory, dtype=torch.uint8)
        self.size = size

    def write_header(self, version: int, *, manifest_offset: int = 0, size: int = 0) -> None:
        """Write the version and the layout of the segment into its header."""
        HEADER.pack_into(self._memory, 0, MAGIC, self._nonce, version, manifest_offset, size)

    def close(self) -> None:
        """Give up the memory; the kernel frees it when no process maps it any more. Idempotent."""
        if self.fd >= 0:
            self.write_header(WRITING)
            os.close(self.fd)
            self.fd = -1
            self.data = torch.empty(0, dtype=torch.uint8)
            del self._memory


def check_room(needed: int, available: int) -> None:
    """Compare the memory needed with the memory there is.

    Raises:
        SyncError: it is too little.
    """
    if needed > available:
        raise SyncError(
            f"the weights need {needed / 2**20:.1f} MiB more of shared memory, and "
            f"{available / 2**20:.1f} MiB are available; free some or set `sync.backend: disk`"
        )


def available_memory() -> int:
    """Bytes that this process may still take, by the machine and by its control group."""
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    free = next(int(row[1]) * 1024 for row in rows if row[0] == "MemAvailable:")
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        # No such file on the root group or an older kernel, and `max` where there is no limit.
        pass
    return max(0, free)


def host_identity() -> str:
    """The same for all processes that run on one kernel since its start."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def map_segment(info: dict[str, Any], fd: int) -> mmap.mmap:
    """Map another process's segment, for reading.

    The mapping is private: who writes to it by mistake changes only their own copy.

    Raises:
        SyncError: the process is on another host, dead, or not to be reached.
    """
    if info["host"] != host_identity():
        raise SyncError(
            "the trainer's shared memory is on another host; set `sync.backend` to `disk` or "
            "`collective`"
        )
    path = f"/proc/{info['pid']}/fd/{fd}"
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SyncError(
            f"cannot open the weights of process {info['pid']} ({path}: {error.strerror}): it has "
            "ended, or runs in another container or for another user; then set `sync.backend: disk`"
        ) from error
    try:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        try:
            memory = mmap.mmap(opened, 0, flags=mmap.MAP_PRIVATE, prot=protection)
        except (OSError, ValueError) as error:
            raise SyncError(f"{path} is no weight segment: {error}") from error
        # Only saves the faults; an older kernel takes them one by one.
        with contextlib.suppress(OSError):
            memory.madvise(POPULATE_READ)
    finally:
        os.close(opened)
    if len(memory) < HEADER.size or read_header(memory).nonce.hex() != info["nonce"]:
        raise SyncError(f"process {info['pid']} is no longer the trainer that announced {path}")
    return memory
