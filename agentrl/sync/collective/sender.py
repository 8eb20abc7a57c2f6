"""Weights over the network: one broadcast from the trainer's rank 0 to all engines.

    sender      fill A | move A | fill B | move B | fill A ...      bytes: gloo or NCCL
    receivers            | take A | use A, take B | use B, ...      headers: through the store

Other trainer ranks are not in the group; they `drain` the same weights, because to iterate them is
itself a collective among trainer ranks. A group is never repaired: when a member is gone, all
leave, and `connect` makes a new one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined] - a re-export

from agentrl.errors import SyncError
from agentrl.sync.collective.process_group import Group
from agentrl.sync.collective.rendezvous import (
    GO,
    base_to_json,
    bucket_key,
    left_key,
    make_store,
    ready_key,
    say,
    sync_key,
)
from agentrl.sync.streaming import StreamingSender
from agentrl.sync.transfer import NotAllCame, SendFailed, Weights
from agentrl.sync.wire.buckets import pack

POLL_S = 0.0005
"""Seconds between two looks at who is ready."""


def drain(weights: Iterable[tuple[str, Tensor]]) -> None:
    """Iterate for the sake of the gathers, on every trainer rank but the sender's."""
    for _ in weights:
        pass


class GroupSender(StreamingSender):
    """Streams weights to all engines; see `agentrl.sync.transfer.WeightSender`.

    Kind `gloo` is for tests and comparisons without GPUs; runs without GPUs use the relay.
    """

    def __init__(self, *, kind: str = "gloo", **settings: Any) -> None:
        """Take the settings; nothing is opened before `connect`.

        Args:
            kind: `nccl` where trainer and engines have GPUs of their own, or `gloo`.
            settings: of `StreamingSender`.
        """
        super().__init__(**settings)
        self._kind = kind
        self._store: TCPStore | None = None
        self._group: Group | None = None
        self._keys: list[str] = []

    def _open(self) -> Mapping[str, Any]:
        self._keys.clear()
        self._store = make_store(self._address, 0, is_master=True, timeout_s=self._timeout_s)
        return {"port": self._store.port, "kind": self._kind}

    def _send(self, weights: Weights, version: int) -> int:
        if self._store is None:
            raise SyncError("connect the collective sender before it sends")
        try:
            return self._broadcast(self._store, weights, version)
        except BaseException as error:
            # Also on cancellation: receivers that wait for a bucket must be notified.
            left = self._who_left(self._store, version)
            self.close()
            if isinstance(error, NotAllCame):
                error.culprits = error.culprits or left
            elif isinstance(error, SyncError | dist.DistError):
                failed = SendFailed(f"the weight group failed: {error}")
                failed.culprits = left
                raise failed from error
            raise

    def _join(self) -> Group:
        assert self._store is not None
        if self._group is None:
            self._group = Group(
                self._store,
                rank=0,
                size=self._size,
                kind=self._kind,
                address=self._address,
                timeout_s=self._timeout_s,
            )
            self._buffers = self._group.make_buffers(self._bucket_bytes)
        return self._group

    def _broadcast(self, store: TCPStore, weights: Weights, version: int) -> int:
        for key in self._keys:
            store.delete_key(key)
        self._keys.clear()
        base = self._encoder.base
        self._publish(store, sync_key(version, "base"), base_to_json(base))
        try:
            self._wait_until_ready(store, version)
        except SyncError:
            self._publish(store, sync_key(version, "go"), b"no")
            raise
        self._publish(store, sync_key(version, "go"), GO)
        group = self._join()
        busy = False
        moved = 0
        stream = self._encoder.encode(weights, version)
        for index, (buffer, header) in enumerate(pack(stream, self._buffers)):
            if header.last:
                self._publish(store, sync_key(version, "checksum"), self._encoder.checksum.encode())
            self._publish(store, bucket_key(version, index), header.to_json())
            if busy:
                group.wait()
            if busy := header.size_bytes > 0:
                group.broadcast(buffer[: header.size_bytes])
            moved += header.size_bytes
        if busy:
            group.wait()
        return moved

    def _wait_until_ready(self, store: TCPStore, version: int) -> None:
        """Begin only when all listen: from then on a missing one would cost the whole time limit.

        Raises:
            SyncError: one did not come in time, or `abort` was called.
        """
        wanted = [ready_key(version, rank) for rank in range(1, self._size)]
        self._keys += wanted
        missing = wanted
        deadline = time.monotonic() + self._timeout_s
        while missing := [key for key in missing if not store.check([key])]:
            if self._aborted.wait(POLL_S):
                raise NotAllCame(f"version {version} was given up: an engine did not take part")
            if time.monotonic() > deadline:
                late = [rank for rank, key in enumerate(wanted, start=1) if key in missing]
                absent = NotAllCame(
                    f"{len(missing)} of {self._size - 1} engines did not come to receive version "
                    f"{version} within {self._timeout_s:g} s"
                )
                absent.culprits = self._engines(late)
                raise absent

    def _who_left(self, store: TCPStore, version: int) -> list[int]:
        ranks = range(1, self._size)
        try:
            left = [rank for rank in ranks if store.check([left_key(version, rank)])]
        except RuntimeError:
            return []
        return self._engines(left)

    def _publish(self, store: TCPStore, key: str, value: bytes) -> None:
        say(store, key, value)
        self._keys.append(key)

    def close(self) -> None:
        """Leave the group and close the rendezvous. Idempotent."""
        group, self._group, self._store = self._group, None, None
        if group is not None:
            group.close()
