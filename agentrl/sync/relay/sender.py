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
from agentrl.sync.streaming import StreamingSender
from agentrl.sync.transfer import MemberLost, NotAllCame, SendFailed, Weights
from agentrl.sync.wire.buckets import pack
from agentrl.sync.wire.checksum import empty_bytes

Members = Mapping[int, tuple[MemberLink, Mapping[str, Any]]]
"""Control connection and first message of each rank."""


class RelaySender(StreamingSender):
    """Streams weights to all engines; see `agentrl.sync.transfer.WeightSender`."""

    def __init__(self, **settings: Any) -> None:
        """Take the settings of `StreamingSender`; nothing is opened before `connect`."""
        super().__init__(**settings)
        self._buffers: list[Tensor] = []
        self._listener: socket.socket | None = None

    def _open(self) -> Mapping[str, Any]:
        self._listener = open_listener(self._address)
        return {
            "kind": "relay",
            "port": self._listener.getsockname()[1],
            "token": secrets.token_hex(16),
        }

    def _send(self, weights: Weights, version: int) -> int:
        if self._listener is None:
            raise SyncError("connect the relay sender before it sends")
        try:
            members = self._meet(self._listener, version)
            try:
                return self._stream(members, weights, version)
            finally:
                for link, _ in members.values():
                    link.close()
        except BaseException:
            self.close()
            raise

    def _meet(self, listener: socket.socket, version: int) -> Members:
        """Wait until all listen: from then on a missing one would cost the whole time limit.

        Raises:
            NotAllCame: one did not come in time or gave up, or `abort` was called.
        """

        def hear(rank: int, message: Mapping[str, Any]) -> None:
            if "gave_up" in message:
                why = f"rank {rank} gave up before version {version}: {message['gave_up']}"
                raise self._blame(NotAllCame(why), [rank])

        ranks = range(1, self._size)
        came = accept_members(
            listener,
            ranks,
            lambda message: is_member(message, self._group_info, version),
            timeout_s=self._timeout_s,
            check=lambda: self._go_on(version),
            hear=hear,
        )
        late = [rank for rank in ranks if rank not in came]
        if late:
            error = NotAllCame(
                f"{len(late)} of {self._size - 1} engines did not come to receive version "
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
            first.say(token=self._group_info["token"], epoch=self._epoch, version=version, rank=0)
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
        error.culprits = self._engines(ranks)
        return error

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
