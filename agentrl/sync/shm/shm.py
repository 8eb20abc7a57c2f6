"""Weights through the memory of one host: the sender copies once, receivers read what it wrote.

Two segments take turns, so a receiver of version v may still read while v + 1 is staged, and a late
joiner takes the newest. A receiver slower than two versions notices it: the segment's header and
every tensor's digest say which weights it holds.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import secrets
import select
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import orjson
import torch
from torch import Tensor

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError
from agentrl.sync.shm.segment import (
    DATA,
    WRITING,
    Segment,
    available_memory,
    check_room,
    host_identity,
    map_segment,
    read_header,
)
from agentrl.sync.transfer import Weights
from agentrl.sync.wire.checksum import (
    THREADS,
    WeightDigest,
    check_ahead,
    check_all,
    copy_with_digest,
)
from agentrl.sync.wire.tensors import TensorRecord, WeightLayout, aligned, tensor_at, total_bytes

GROWTH = 1 << 30
"""Most bytes by which a segment of unknown final size grows at once."""
IN_FLIGHT = 4 * THREADS
"""Tensors that wait to be copied, at most."""
MANIFEST_ROW = 256
"""Bytes that a record takes in the manifest, generously."""

logger = logging.getLogger(__name__)


class ShmSender:
    """Stages weights in two segments; see `agentrl.sync.transfer.WeightSender`."""

    backend = "shm"
    streams = False

    def __init__(self, *, available: Callable[[], int] = available_memory) -> None:
        """Make two empty segments.

        Args:
            available: bytes of memory that may still be taken.
        """
        nonce = secrets.token_bytes(16)
        self._available = available
        self._segments = [Segment(nonce, available) for _ in range(2)]
        self._layout = WeightLayout()
        self._turn = 0
        self._info: dict[str, Any] = {
            "pid": os.getpid(),
            "host": host_identity(),
            "nonce": nonce.hex(),
            "fds": [segment.fd for segment in self._segments],
        }

    def connect(self, receivers: int) -> Sequence[Mapping[str, Any]]:
        """Name the segments; the same for every receiver."""
        return [self._info] * receivers

    def announce(self, version: int) -> WeightTicket:
        """Not for a sender that stages."""
        raise SyncError("backend shm stages its weights: send them, then give out the ticket")

    def send(self, weights: Weights, version: int) -> WeightTicket:
        """Copy the weights into the older segment.

        Raises:
            SyncError: too little memory, before anything is written, or another layout.
        """
        segment = self._segments[self._turn]
        if segment.fd < 0:
            raise SyncError("this sender is closed")
        total = total_bytes(weights)
        if total is not None:
            total += DATA + MANIFEST_ROW * len(cast(Sequence[Any], weights))
            missing = [max(0, total - other.size) for other in self._segments]
            if missing[self._turn]:
                check_room(sum(missing), self._available())
                segment.reserve(total)
        segment.write_header(WRITING)
        records, checksum, size = self._copy(segment, weights)
        manifest = orjson.dumps([record.to_json() for record in records])
        segment.reserve(size + len(manifest))
        segment.data[size : size + len(manifest)].numpy()[:] = memoryview(manifest)
        segment.trim(size + len(manifest))
        segment.write_header(version, manifest_offset=size, size=len(manifest))
        self._turn = 1 - self._turn
        info = {**self._info, "fd": segment.fd, "size_bytes": size - DATA}
        return WeightTicket(backend="shm", version=version, info=info, checksum=checksum)

    def _copy(self, segment: Segment, weights: Weights) -> tuple[list[TensorRecord], str, int]:
        placed: list[TensorRecord] = []
        copies: list[Future[str]] = []
        size = DATA
        with ThreadPoolExecutor(THREADS) as pool:
            for bare, tensor in self._layout.watch(weights):
                offset = aligned(size)
                size = offset + tensor.numel() * tensor.element_size()
                if size > segment.size:
                    segment.reserve(max(size, min(2 * segment.size, segment.size + GROWTH)))
                target = segment.data[offset:size]
                placed.append(replace(bare, offset=offset))
                copies.append(_begin_copy(pool, target, tensor))
                if len(copies) > IN_FLIGHT:
                    # A generator that gathers must not fill the memory with tensors that wait.
                    copies[-IN_FLIGHT].result()
            digests = [copy.result() for copy in copies]
        digest = WeightDigest()
        records = [replace(row, digest=d) for row, d in zip(placed, digests, strict=True)]
        for record in records:
            digest.add(record)
        return records, digest.hexdigest(), size

    def close(self) -> None:
        """Free the memory; receivers keep what they have mapped until they release it."""
        for segment in self._segments:
            segment.close()


class ShmReceiver:
    """Reads the sender's segments where they are; see `agentrl.sync.transfer.WeightReceiver`."""

    keeps = True
    """Tensors stay valid until the next ticket."""

    def __init__(self) -> None:
        # Guards the maps, which the thread that waits for the sender's death drops.
        self._lock = threading.Lock()
        self._maps: dict[tuple[str, int], mmap.mmap] = {}
        self._watched: set[int] = set()

    def connect(self, info: Mapping[str, Any]) -> None:
        """Check that the segments can be reached, and release those of an earlier sender."""
        self.close()
        for fd in info["fds"]:
            map_segment(dict(info), fd)

    def receive(self, ticket: WeightTicket) -> Generator[tuple[str, Tensor]]:
        """Views into the segment of the ticket, each checked before it is yielded."""
        info = dict(ticket.info)
        memory = self._memory(info)
        buffer = torch.frombuffer(memory, dtype=torch.uint8)
        header = read_header(memory)
        _check_version(header.version, ticket.version)
        end = header.manifest_offset + header.manifest_bytes
        if end > len(memory):
            raise SyncError(f"segment of version {ticket.version} is cut short at {len(memory)}")
        try:
            rows = orjson.loads(memory[header.manifest_offset : end])
        except orjson.JSONDecodeError as error:
            raise SyncError(f"manifest of version {ticket.version} is damaged: {error}") from error
        digest = WeightDigest()
        records = map(TensorRecord.from_json, rows)
        pairs = ((record, tensor_at(buffer, record)) for record in records)
        with contextlib.closing(check_ahead(pairs)) as checked:
            for record, tensor in checked:
                digest.add(record)
                yield record.name, tensor
        # Every use of the views by now was before the sender began to write over them.
        _check_version(read_header(memory).version, ticket.version)
        check_all(digest.hexdigest(), ticket.checksum, ticket.version)

    def _memory(self, info: dict[str, Any]) -> mmap.mmap:
        key = (info["nonce"], info["fd"])
        with self._lock:
            memory = self._maps.get(key)
        # Mapped afresh when the segment has grown; the pages of an old map remain the same ones.
        needed = DATA + info["size_bytes"]
        if memory is None or len(memory) < needed or not _is_whole(memory):
            memory = map_segment(info, info["fd"])
        with self._lock:
            self._maps[key] = memory
        self._let_go_with(info["pid"])
        return memory

    def _let_go_with(self, pid: int) -> None:
        """Drop the maps when the sender ends, so that its weights do not outlive it here."""
        if pid == os.getpid() or pid in self._watched:
            return
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            logger.debug("process %d cannot be watched; its maps stay until the next one", pid)
            return
        self._watched.add(pid)

        def wait() -> None:
            with contextlib.suppress(OSError):
                select.select([handle], [], [])
            os.close(handle)
            self._watched.discard(pid)
            self.close()

        threading.Thread(target=wait, name=f"weights-of-{pid}", daemon=True).start()

    def close(self) -> None:
        """Release the segments. Idempotent."""
        with self._lock:
            self._maps.clear()


def _begin_copy(pool: ThreadPoolExecutor, target: Tensor, source: Tensor) -> Future[str]:
    if source.device.type == "cpu":
        return pool.submit(copy_with_digest, target, source)
    # The stream that the source is computed on belongs to this thread.
    done: Future[str] = Future()
    done.set_result(copy_with_digest(target, source))
    return done


def _is_whole(memory: mmap.mmap) -> bool:
    header = read_header(memory)
    return header.manifest_offset + header.manifest_bytes <= len(memory)


def _check_version(got: int, expected: int) -> None:
    if got != expected:
        held = "is being written over" if got == WRITING else f"holds version {got}"
        raise SyncError(
            f"the segment of version {expected} {held}: this receiver came too late; take the "
            "newest ticket"
        )
