"""The engines' half of a broadcast; `agentrl.sync.collective.sender` draws both."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined] - a re-export

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError
from agentrl.sync.collective.process_group import Group
from agentrl.sync.collective.rendezvous import (
    GO,
    base_from_json,
    bucket_key,
    left_key,
    make_store,
    own_address,
    ready_key,
    say,
    sync_key,
)
from agentrl.sync.transfer import MemberLost
from agentrl.sync.wire.buckets import Bucket, BucketHeader, unpack
from agentrl.sync.wire.patches import PatchBase, PatchDecoder


class GroupReceiver:
    """Takes part in the broadcasts; see `agentrl.sync.transfer.WeightReceiver`."""

    keeps = False
    """A tensor is overwritten when later ones arrive."""

    def __init__(self) -> None:
        self._decoder = PatchDecoder()
        self._info: Mapping[str, Any] | None = None
        self._store: TCPStore | None = None
        self._group: Group | None = None
        self._buffers: list[Tensor] = []

    def connect(self, info: Mapping[str, Any]) -> None:
        """Leave the group there is and reach the rendezvous of the new one."""
        self.close()
        self._info = info
        self._store = make_store(
            info["host"], info["port"], is_master=False, timeout_s=info["timeout_s"]
        )

    def receive(self, ticket: WeightTicket) -> Generator[tuple[str, Tensor]]:
        """Take the coming broadcasts."""
        info = self._info
        if info is None or self._store is None or info["epoch"] != ticket.info["epoch"]:
            raise SyncError(
                f"version {ticket.version} comes through group {ticket.info['epoch']}, this engine "
                f"is in {info['epoch'] if info else 'none'}; prepare it first"
            )
        try:
            yield from self._receive(info, self._store, ticket.version)
        except BaseException as error:
            # Also when the engine stops listening: the others must not wait for it.
            if not isinstance(error, MemberLost | dist.DistError):
                with contextlib.suppress(RuntimeError):
                    say(self._store, left_key(ticket.version, info["rank"]))
            self.close()
            if isinstance(error, dist.DistError):
                raise SyncError(f"the weight group failed: {error}") from error
            raise

    def _join(self, info: Mapping[str, Any], store: TCPStore) -> Group:
        if self._group is None:
            self._group = Group(
                store,
                rank=info["rank"],
                size=info["size"],
                kind=info["kind"],
                address=own_address(info["host"], info["port"]),
                timeout_s=info["timeout_s"],
            )
            self._buffers = self._group.make_buffers(info["bucket_bytes"])
        return self._group

    def _receive(
        self, info: Mapping[str, Any], store: TCPStore, version: int
    ) -> Iterator[tuple[str, Tensor]]:
        def arrived() -> PatchBase:
            checksum = store.get(sync_key(version, "checksum")).decode()
            return PatchBase(version=version, checksum=checksum)

        base = base_from_json(store.get(sync_key(version, "base")))
        if base is not None:
            self._decoder.expect(base)
        say(store, ready_key(version, info["rank"]))
        if store.get(sync_key(version, "go")) != GO:
            raise MemberLost(f"version {version} was given up: another engine did not take part")
        group = self._join(info, store)
        stream = unpack(self._buckets(store, group, version), version=version)
        if base is not None:
            yield from self._decoder.apply(stream, base, arrived)
            return
        yield from self._decoder.dense(stream, arrived, keep=info["patches_follow"])

    def _buckets(self, store: TCPStore, group: Group, version: int) -> Iterator[Bucket]:
        """The buckets in turn, the next one on its way while one is used."""

        def begin(index: int) -> Bucket:
            header = BucketHeader.from_json(store.get(bucket_key(version, index)))
            buffer = self._buffers[index % 2]
            if header.size_bytes:
                group.broadcast(buffer[: header.size_bytes])
            return buffer, header

        index = 0
        coming = begin(index)
        while True:
            buffer, header = coming
            if header.size_bytes:
                group.wait()
            if not header.last:
                index += 1
                coming = begin(index)
            yield buffer, header
            if header.last:
                return

    def close(self) -> None:
        """Leave the group; weights kept for patches stay, their next base decides. Idempotent."""
        group, self._group, self._store, self._info = self._group, None, None, None
        if group is not None:
            group.close()
