"""The engines' half of `collective`: a relay or a process group, as the sender's info asks."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError, choices
from agentrl.sync.transfer import WeightReceiver

if TYPE_CHECKING:
    from torch import Tensor


class NetworkReceiver:
    """Receives in the way of its sender; see `agentrl.sync.transfer.WeightReceiver`."""

    keeps = False
    """A tensor is overwritten when later ones arrive."""

    def __init__(self) -> None:
        self._kind = ""
        self._receiver: WeightReceiver | None = None

    def connect(self, info: Mapping[str, Any]) -> None:
        """Leave the group there is and join that of the info."""
        if self._receiver is None or info["kind"] != self._kind:
            self.close()
            self._receiver, self._kind = _receiver_of(info["kind"]), info["kind"]
        self._receiver.connect(info)

    def receive(self, ticket: WeightTicket) -> Generator[tuple[str, Tensor]]:
        """Take part in the coming send."""
        if self._receiver is None:
            raise SyncError(
                f"version {ticket.version} comes through group {ticket.info['epoch']}, this engine "
                "is in none; prepare it first"
            )
        return self._receiver.receive(ticket)

    def close(self) -> None:
        """Leave the group. Idempotent."""
        if self._receiver is not None:
            self._receiver.close()


def _receiver_of(kind: str) -> WeightReceiver:
    if kind == "relay":
        from agentrl.sync.relay.receiver import RelayReceiver

        return RelayReceiver()
    if kind in ("gloo", "nccl"):
        from agentrl.sync.collective.receiver import GroupReceiver

        return GroupReceiver()
    raise SyncError(f"kind of the group of weights: {choices(kind, ('relay', 'gloo', 'nccl'))}")
