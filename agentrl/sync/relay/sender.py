"""Weights over TCP, from the trainer to the first engine and from each engine to the next.

    sender ==> rank 1 ==> rank 2 ==> ... ==> rank N        bytes, passed on as they come
       |<--------+----------+-----------------+            control: who listens, who failed

Every link carries the weights once, so N engines cost little more than one, and a host sends no
more than it receives. The first step of a send is a meeting: every engine connects and says where
it listens, and nothing is sent until all have. A group is never repaired: when a member is gone,
all leave, and `connect` makes a new one. All connections of a sync end with it.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError
from agentrl.sync.relay.flow import RelayFlow
from agentrl.sync.relay.links import (
    MemberLink,
    accept_members,
    is_member,
    open_listener,
    reach,
    reason_of,
)
from agentrl.sync.relay.pump import frame_of
from agentrl.sync.transfer import MemberLost, NotAllCame, SendFailed, Weights, need_ended
from agentrl.sync.wire.buckets import pack
from agentrl.sync.wire.checksum import empty_bytes
from agentrl.sync.wire.patches import PatchEncoder

Members = Mapping[int, tuple[MemberLink, Mapping[str, Any]]]
"""Control connection and first message of each rank."""


class RelaySender:
    """Streams weights to all engines; see `agentrl.sync.transfer.WeightSender`."""

    backend = "collective"
    streams = True

    def __init__(
        self,
        *,
        bucket_bytes: int,
        dense_every: int = 1,
        address: str = "127.0.0.1",
        workers: int = 1,
        timeout_s: float = 60.0,
    ) -> None:
        """Take the settings; nothing is opened before `connect`.

        Args:
            bucket_bytes: of one buffer; there are two.
            dense_every: all weights go with every so many sends, between them patches.
            address: of this host, as the engines reach it.
            workers: processes of each engine that receive.
            timeout_s: for the meeting, and without progress of any member.
        """
        self._bucket_bytes, self._dense_every = bucket_bytes, dense_every
        self._address, self._workers, self._timeout_s = address, workers, timeout_s
        self._encoder = PatchEncoder(dense_every)
        self._buffers: list[Tensor] = []
        self._listener: socket.socket | None = None
        self._group: dict[str, Any] = {}
        self._epoch = self._receivers = 0
        self._aborted = threading.Event()
        self._sending = threading.Lock()
        """Held by `send`: `_aborted` and the buffers are one send's at a time."""

    def connect(self, receivers: int) -> Sequence[Mapping[str, Any]]:
        """Leave the group there is and open the meeting of a new one.

        Raises:
            SyncError: a send that was aborted has not ended, or the address is not of this host.
        """
        need_ended(self._sending)
        self.close()
        self._encoder.forget()
        self._listener = open_listener(self._address)
        self._receivers = receivers * self._workers
        self._epoch += 1
        self._group = {
            "kind": "relay",
            "host": self._address,
            "port": self._listener.getsockname()[1],
            "size": self._receivers + 1,
            "epoch": self._epoch,
            "token": secrets.token_hex(16),
            "bucket_bytes": self._bucket_bytes,
            "timeout_s": self._timeout_s,
            "patches_follow": self._dense_every > 1,
            "workers": self._workers,
        }
        # Of the first worker of each engine; the others count on from it.
        ranks = range(1, self._receivers + 1, self._workers)
        return [{**self._group, "rank": rank} for rank in ranks]

    def announce(self, version: int) -> WeightTicket:
        """The ticket of a coming `send`; its checksum follows with the last bucket.

        Raises:
            SyncError: a send that was aborted has not ended.
        """
        need_ended(self._sending)
        self._aborted.clear()
        return WeightTicket(backend=self.backend, version=version, info={"epoch": self._epoch})

    def send(self, weights: Weights, version: int) -> WeightTicket:
        """Stream, while every engine is in `load_weights`.

        Raises:
            SendFailed: an engine failed or was too slow; the group is left.
            SyncError: not connected, or the weights changed their layout.
        """
        if self._listener is None:
            raise SyncError("connect the relay sender before it sends")
        with self._sending:
            try:
                members = self._meet(self._listener, version)
                try:
                    moved = self._stream(members, weights, version)
                finally:
                    for link, _ in members.values():
                        link.close()
            except BaseException:
                self.close()
                raise
        return WeightTicket(
            backend=self.backend,
            version=version,
            info={"epoch": self._epoch, "size_bytes": moved},
            checksum=self._encoder.checksum,
        )

    def _meet(self, listener: socket.socket, version: int) -> Members:
        """Wait until all listen: from then on a missing one would cost the whole time limit.

        Raises:
            NotAllCame: one did not come in time or gave up, or `abort` was called.
        """

        def hear(rank: int, message: Mapping[str, Any]) -> None:
            if "gave_up" in message:
                why = f"rank {rank} gave up before version {version}: {message['gave_up']}"
                raise self._blame(NotAllCame(why), [rank])

        ranks = range(1, self._receivers + 1)
        came = accept_members(
            listener,
            ranks,
            lambda message: is_member(message, self._group, version),
            timeout_s=self._timeout_s,
            check=lambda: self._go_on(version),
            hear=hear,
        )
        late = [rank for rank in ranks if rank not in came]
        if late:
            error = NotAllCame(
                f"{len(late)} of {self._receivers} engines did not come to receive version "
                f"{version} within {self._timeout_s:g} s: rank {', '.join(map(str, late))}"
            )
            _end_sync(came, error)
            raise self._blame(error, late)
        return came

    def _go_on(self, version: int) -> None:
        """Raise if `abort` was called; nothing has been sent yet."""
        if self._aborted.is_set():
            raise NotAllCame(f"version {version} was given up: an engine did not take part")

    def _stream(self, members: Members, weights: Weights, version: int) -> int:
        base = self._encoder.base
        wanted = [base.version, base.checksum] if base else None
        if any(hello["holds"] != wanted for _, hello in members.values()):
            self._encoder.forget()
            wanted = None
        for rank, (link, _) in members.items():
            behind = members.get(rank + 1)
            link.say(go=True, base=wanted, next=behind[1]["listens"] if behind else None)
        host, port = members[1][1]["listens"]
        first: MemberLink | None = None
        flow: RelayFlow | None = None
        try:
            first = reach(
                host,
                port,
                who="rank 1",
                timeout_s=self._timeout_s,
                check=lambda: self._go_on(version),
            )
            first.say(token=self._group["token"], epoch=self._epoch, version=version, rank=0)
            flow = RelayFlow(
                first,
                {rank: link for rank, (link, _) in members.items()},
                version=version,
                limit_s=self._timeout_s,
                aborted=self._aborted,
            )
            return self._write(flow, weights, version)
        except BaseException as error:
            _end_sync(members, error)
            if flow is None and isinstance(error, MemberLost):
                raise self._blame(SendFailed(str(error)), [1]) from error
            if flow is not None and isinstance(error, SendFailed):
                self._blame(error, flow.evidence.culprits())
            raise
        finally:
            if first is not None:
                first.close()

    def _write(self, flow: RelayFlow, weights: Weights, version: int) -> int:
        """One bucket fills while another travels."""
        moved = 0
        filled = threading.Event()
        if not self._buffers:
            self._buffers = [empty_bytes(self._bucket_bytes) for _ in range(2)]
        with _writer(self._aborted) as pool:
            travels: Future[None] = pool.submit(flow.write, [], filled)
            for buffer, header in pack(self._encoder.encode(weights, version), self._buffers):
                filled.set()
                travels.result()
                filled.clear()
                head = frame_of(header, self._encoder.checksum if header.last else "")
                body = buffer.numpy().data[: header.size_bytes]
                travels = pool.submit(flow.write, [memoryview(head), body], filled)
                moved += header.size_bytes
            filled.set()
            travels.result()
            pool.submit(flow.finish).result()
        return moved

    def _blame(self, error: SendFailed, ranks: Sequence[int]) -> SendFailed:
        error.culprits = sorted({(rank - 1) // self._workers for rank in ranks})
        return error

    def abort(self) -> None:
        """From another thread: end a `send`, at once, wherever it is."""
        self._aborted.set()

    def close(self) -> None:
        """Leave the group and close its port. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()


@contextlib.contextmanager
def _writer(aborted: threading.Event) -> Iterator[ThreadPoolExecutor]:
    """A thread that writes, and has ended when the block has."""
    with ThreadPoolExecutor(1, thread_name_prefix="weight-send") as pool:
        try:
            yield pool
        except BaseException:
            aborted.set()  # it may be in the middle of a bucket
            raise


def _end_sync(members: Members, error: BaseException) -> None:
    """Notify all members that the sync has ended, and why, and leave them."""
    for link, _ in members.values():
        link.say(end=reason_of(error))
        link.close()
