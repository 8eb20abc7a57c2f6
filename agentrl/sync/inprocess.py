"""The embedded engine samples from the trainer's own parameters: only the version moves."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError
from agentrl.sync.transfer import Weights

if TYPE_CHECKING:
    from torch import Tensor


class InProcessSender:
    """Gives out tickets; see `agentrl.sync.transfer.WeightSender`."""

    backend = "inprocess"
    streams = False

    def connect(self, receivers: int) -> Sequence[Mapping[str, Any]]:
        """Do nothing; there is no group to join."""
        return [{}] * receivers

    def announce(self, version: int) -> WeightTicket:
        """The ticket of a version."""
        return WeightTicket(backend=self.backend, version=version, info={"size_bytes": 0})

    def send(self, weights: Weights, version: int) -> WeightTicket:
        """Leave the weights where they are, unread."""
        return self.announce(version)

    def close(self) -> None:
        """Do nothing; this sender holds no resource."""


class InProcessReceiver:
    """Reports that nothing comes; see `agentrl.sync.transfer.WeightReceiver`."""

    keeps = True
    """Tensors stay valid until the next ticket."""

    def connect(self, info: Mapping[str, Any]) -> None:
        """Do nothing; there is no group to join."""

    def receive(self, ticket: WeightTicket) -> Generator[tuple[str, Tensor]]:
        """An engine with weights of its own cannot be synced this way."""
        raise SyncError(
            "backend inprocess moves no weights: this engine does not share the trainer's; set "
            "`sync.backend` to `shm`, `disk` or `collective`"
        )

    def close(self) -> None:
        """Do nothing; this receiver holds no resource."""
