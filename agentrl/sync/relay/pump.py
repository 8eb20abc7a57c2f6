"""The bytes of a sync through one receiver: in from the rank before, out to the rank behind.

    before ==> buffer A, buffer B ==> behind
                 |
                 +--> the engine uses A while B fills

A byte is passed on as soon as it has come, not when its bucket is whole, so a chain of N members
costs one transfer and N short delays. The chain goes as fast as its slowest member: a receiver
whose engine still uses both buffers takes nothing more, and no member holds more than its two.
"""

from __future__ import annotations

import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence

from torch import Tensor

from agentrl.errors import SyncError
from agentrl.sync.relay.links import TICK_S, MemberLink, answer_sender, ready
from agentrl.sync.transfer import MemberLost
from agentrl.sync.wire.buckets import Bucket, BucketHeader

FRAME = struct.Struct("<QQ")
"""Before each bucket: bytes of its header, bytes of the bucket."""
HEADER_BYTES = 1 << 28
"""Longest header of a bucket."""


def frame_of(header: BucketHeader, checksum: str) -> bytes:
    """The bytes before a bucket; the checksum of all weights is known with the last one."""
    text = header.to_json() + b"\n" + checksum.encode()
    return FRAME.pack(len(text), header.size_bytes) + text


class RelayPump:
    """A thread that receives, keeps and passes on the buckets of one sync."""

    def __init__(
        self,
        *,
        rank: int,
        control: MemberLink,
        before: socket.socket,
        behind: socket.socket | None,
        buffers: Sequence[Tensor],
        limit_s: float,
    ) -> None:
        """Take connections, which the caller closes after `stop`.

        Args:
            rank: of this receiver.
            control: to the sender; it asks what this member waits for, and closing it ends the
                sync.
            before: gives the bytes.
            behind: gets them; None for the last member.
            buffers: two of one size.
            limit_s: seconds without a byte or a sign of life after which the sender counts as lost.
        """
        self.checksum = ""
        """Of all weights, with the last bucket."""
        self._rank, self._control, self._limit_s = rank, control, limit_s
        self._before, self._behind = before, behind
        self._buffers = buffers
        self._free = threading.Semaphore(len(buffers))
        self._full: queue.SimpleQueue[Bucket | BaseException] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._waits, self._moved = "input", time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"weight-relay-{rank}", daemon=True)
        self._thread.start()

    def buckets(self) -> Iterator[Bucket]:
        """The buckets in turn; one is valid until the next is asked for.

        Raises:
            MemberLost: another member is gone.
            SyncError: what came is no bucket.
        """
        last = False
        while not last:
            item = self._full.get()
            if isinstance(item, BaseException):
                raise item
            yield item
            last = item[1].last
            self._free.release()

    def stop(self) -> None:
        """End the thread. Idempotent."""
        self._stopped.set()
        self._thread.join()

    # -- in the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            turn, last = 0, False
            while not last:
                self._wait_for_engine()
                buffer = self._buffers[turn]
                header = self._take(buffer)
                turn, last = (turn + 1) % len(self._buffers), header.last
                self._full.put((buffer, header))
            self._control.say(done=True)
        except BaseException as error:  # passed to the engine's thread, any error
            self._full.put(error)

    def _take(self, buffer: Tensor) -> BucketHeader:
        """Receive one bucket and pass it on."""
        head = bytearray(FRAME.size)
        self._move(memoryview(head))
        header_bytes, size = FRAME.unpack(head)
        if header_bytes > HEADER_BYTES or size > len(buffer):
            raise SyncError(
                f"a bucket of {size} bytes with a header of {header_bytes} came to rank "
                f"{self._rank}, expected at most {len(buffer)} and {HEADER_BYTES}"
            )
        text = bytearray(header_bytes)
        self._move(memoryview(text))
        row, _, checksum = bytes(text).partition(b"\n")
        header = BucketHeader.from_json(row)
        if header.size_bytes != size:
            raise SyncError(f"a bucket of {size} bytes says that it has {header.size_bytes}")
        self._move(buffer.numpy().data[:size])
        self.checksum = checksum.decode()
        return header

    def _move(self, view: memoryview) -> None:
        """Fill the view from the rank before, and pass on what has come."""
        got, sent = 0, 0 if self._behind is not None else len(view)
        while got < len(view) or sent < len(view):
            waiting = {self._control.fileno(): select.POLLIN}
            if got < len(view):
                waiting[self._before.fileno()] = select.POLLIN
            if self._behind is not None:
                waiting[self._behind.fileno()] = select.POLLOUT if sent < got else 0
            self._waits = "output" if sent < got else "input"
            events = ready(waiting)
            moved = 0
            if self._before.fileno() in events:
                moved = self._receive(view[got:])
                got += moved
            if self._behind is not None and self._behind.fileno() in events:
                count = self._send(self._behind, view[sent:got])
                sent, moved = sent + count, moved + count
            self._look(moved=moved > 0)

    def _receive(self, view: memoryview) -> int:
        try:
            count = self._before.recv_into(view)
        except BlockingIOError:
            return 0
        except OSError:
            count = 0
        if count == 0:
            raise MemberLost(f"rank {self._rank - 1} is gone, seen by rank {self._rank}")
        return count

    def _send(self, behind: socket.socket, view: memoryview) -> int:
        try:
            # Without bytes to send only an error or the end of the connection can have come.
            return behind.send(view) if len(view) else self._ended(behind)
        except BlockingIOError:
            return 0
        except OSError:
            raise MemberLost(f"rank {self._rank + 1} is gone, seen by rank {self._rank}") from None

    def _ended(self, behind: socket.socket) -> int:
        if behind.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError
        return 0

    def _wait_for_engine(self) -> None:
        while not self._free.acquire(timeout=TICK_S):
            self._waits = "engine"
            self._look(moved=False)

    def _look(self, *, moved: bool) -> None:
        """Answer the sender; raise if the sync has ended or nothing has come for too long."""
        now = time.monotonic()
        if moved:
            self._moved = now
        if self._stopped.is_set():
            raise MemberLost(f"rank {self._rank} gave up")
        if answer_sender(self._control, waits=self._waits, idle_s=now - self._moved):
            self._moved = now
        if now - self._moved > self._limit_s:
            raise MemberLost(
                f"rank {self._rank} got no byte of the weights for {self._limit_s:g} s"
            )
