"""A `WeightSender` that lives in trainer rank 0, for a coordinator that lives in the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError
from agentrl.runtime.ray.worker_group import ActorLost, WorkerGroup, ask_blocking

if TYPE_CHECKING:
    from agentrl.sync.transfer import Weights

SEND_LIMIT_S = 3600.0
"""Seconds one call may take; the sender has its own, shorter limits on every wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderFacts:
    """Properties of the sender that the driver needs."""

    backend: str
    """Weight backend, as in its tickets."""
    streams: bool
    """Whether engines must be receiving while it sends."""
    meets: bool
    """Whether it takes part in the meeting by a call of its own."""
    gathers: bool = False
    """Whether the other ranks hold parts of the weights, which they give while rank 0 sends."""


class RemoteSender:
    """Forwards every call. Only tickets and infos travel; weights go from rank 0 to the engines."""

    def __init__(self, ranks: WorkerGroup, facts: SenderFacts) -> None:
        self.backend = facts.backend
        self.streams = facts.streams
        self._ranks = ranks
        self._others = range(1, len(ranks)) if facts.gathers else range(0)
        if facts.meets:
            self.meet = lambda: self._ask("meet")

    def connect(self, receivers: int) -> Sequence[Mapping[str, Any]]:
        """`connect` as in `WeightSender.connect`."""
        return self._ask("connect", receivers)

    def announce(self, version: int) -> WeightTicket:
        """`announce` as in `WeightSender.announce`."""
        return self._ask("announce", version)

    def send(self, weights: Weights, version: int) -> WeightTicket:
        """Send the weights of rank 0, as `WeightSender` asks; `weights` is ignored."""
        with ThreadPoolExecutor(max(1, len(self._others))) as pool:
            others = [pool.submit(self._gather, rank) for rank in self._others]
            ticket = self._ask("send", version)
            for other in others:
                other.result()
        return ticket

    def abort(self) -> None:
        """Abort a send that engines have left."""
        self._ask("abort")

    def close(self) -> None:
        """`close` as in `WeightSender.close`."""
        self._ask("close")

    def _gather(self, rank: int) -> None:
        try:
            ask_blocking(
                self._ranks.handle(rank),
                "gather_weights",
                self.backend,
                who=f"trainer rank {rank}",
                limit_s=SEND_LIMIT_S,
            )
        except ActorLost as error:
            raise SyncError(str(error)) from error

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            return ask_blocking(
                self._ranks.handle(0),
                "sender",
                method,
                *args,
                who="trainer rank 0",
                limit_s=SEND_LIMIT_S,
            )
        except ActorLost as error:
            if method == "close":
                return None  # what it held went with it
            raise SyncError(str(error)) from error
