"""The contract of moving weights: one sender beside the trainer, one receiver in every engine.

    trainer rank 0   connect(n) -> n infos      send(weights, version) -> ticket      close
    engine           prepare_weights(info)      load_weights(ticket) -> receive       close

`(name, tensor)` pairs go in under the names of the Hugging Face checkpoint, and the same pairs come
out, in the same order, bit for bit. Who applies them to which layout is the engine's business.

A sender either *stages* (`streams` False: shared memory, a folder) or *streams* (a collective).
Staged weights are complete before any engine is paused and can be taken later, by late joiners too.
A streaming sender needs all its engines in `load_weights` while it sends.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError

if TYPE_CHECKING:
    from torch import Tensor

Weights = Iterable[tuple[str, "Tensor"]]


class SendFailed(SyncError):
    """A streaming send failed; crosses processes with its culprits."""

    culprits: Sequence[int] = ()
    """Receivers that made it fail, by their index in `connect`; empty where that is not known."""


class NotAllCame(SendFailed):
    """A streaming send was given up before its first byte: an engine did not take part."""


class MemberLost(SyncError):
    """Another member of a group that streams is gone, or has ended the sync."""


def need_ended(sending: Lock) -> None:
    """Check that no send is running, before the next one is prepared.

    Args:
        sending: held by `send`.

    Raises:
        SyncError: one is.
    """
    if sending.locked():
        raise SyncError(
            "the last send of weights was given up and has not ended: what gathers the weights "
            "hangs in the trainer; start the run again"
        )


class WeightSender(Protocol):
    """Beside the trainer, on its rank 0. Blocks; one call at a time."""

    backend: str
    """Backend name in the tickets."""
    streams: bool
    """Whether the engines must be receiving while `send` runs."""

    def connect(self, receivers: int) -> Sequence[Mapping[str, Any]]:
        """Describe how to meet, once before the first `send` and again when the fleet has changed.

        Returns:
            One JSON-serialisable info for each receiver's `prepare_weights`, in their order; the
            meeting itself may take place in the first `send`.

        Raises:
            SyncError: it cannot be met, or a send that was given up has not ended.
        """
        ...

    def announce(self, version: int) -> WeightTicket:
        """The ticket of a coming `send`, for the engines of a streaming sender.

        Raises:
            SyncError: a send that was given up has not ended.
        """
        ...

    def send(self, weights: Weights, version: int) -> WeightTicket:
        """Move one version. On return of a staging sender everything lies ready.

        Raises:
            SyncError: the weights changed their names, shapes or dtypes, or could not be moved.
        """
        ...

    def close(self) -> None:
        """Release segments, folders and process groups. Idempotent."""
        ...


class WeightReceiver(Protocol):
    """In every engine process. Blocks; one call at a time."""

    def connect(self, info: Mapping[str, Any]) -> None:
        """Take the info from `WeightSender.connect`."""
        ...

    def receive(self, ticket: WeightTicket) -> Generator[tuple[str, Tensor]]:
        """The weights of a ticket; a tensor is valid until the next one is asked for.

        Raises:
            SyncError: they are not those of the ticket: gone, truncated, or of another checksum.
                Raised at the latest when the iterator ends.
        """
        ...

    def close(self) -> None:
        """Give everything back. Idempotent."""
        ...
