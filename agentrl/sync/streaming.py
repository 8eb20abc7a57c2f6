"""The side of a sender that streams which does not depend on how the bytes travel.

Both kinds (`collective`, `relay`) meet anew with every `connect`, announce a ticket before the
weights are known, hold one lock while they send, and name engines by the ranks that failed.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl.engine import WeightTicket
from agentrl.sync.transfer import Weights, need_ended
from agentrl.sync.wire.patches import PatchEncoder


class StreamingSender(abc.ABC):
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
            timeout_s: for the meeting, and for each bucket or without progress of any member.
        """
        self._bucket_bytes, self._dense_every = bucket_bytes, dense_every
        self._address, self._workers, self._timeout_s = address, workers, timeout_s
        self._encoder = PatchEncoder(dense_every)
        self._group_info: Mapping[str, Any] = {}
        self._epoch = self._size = 0
        """Groups that were made, and members of the one there is, this sender being rank 0."""
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
        opened = self._open()
        self._size = receivers * self._workers + 1
        self._epoch += 1
        self._group_info = {
            **opened,
            "host": self._address,
            "size": self._size,
            "epoch": self._epoch,
            "bucket_bytes": self._bucket_bytes,
            "timeout_s": self._timeout_s,
            "patches_follow": self._dense_every > 1,
            "workers": self._workers,
        }
        # Of the first worker of each engine; the others count on from it.
        ranks = range(1, self._size, self._workers)
        return [{**self._group_info, "rank": rank} for rank in ranks]

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
        with self._sending:
            moved = self._send(weights, version)
        return WeightTicket(
            backend=self.backend,
            version=version,
            info={"epoch": self._epoch, "size_bytes": moved},
            checksum=self._encoder.checksum,
        )

    def abort(self) -> None:
        """From another thread: end a `send` that waits for engines that will not come."""
        self._aborted.set()

    def _engines(self, ranks: Iterable[int]) -> list[int]:
        """Engines of some ranks, by their index in `connect`."""
        return sorted({(rank - 1) // self._workers for rank in ranks})

    @abc.abstractmethod
    def _open(self) -> Mapping[str, Any]:
        """Open a meeting; what engines must know of it beside what all kinds send."""

    @abc.abstractmethod
    def _send(self, weights: Weights, version: int) -> int:
        """Bytes that were moved; a send that fails leaves the group."""

    @abc.abstractmethod
    def close(self) -> None:
        """Leave the group and close its meeting. Idempotent."""
