"""Reference of a fit whose ranks hold a slice of it each; rank 0 orders, and all compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.batch.packing import padding_micro_batch
from agentrl.batch.records import MicroBatch, RowKey

if TYPE_CHECKING:
    from agentrl.train.backends.ranks import Ranks
    from agentrl.train.reference import Reference


@dataclass(frozen=True, slots=True)
class _LastWord:
    """The last word of rank 0."""

    sums: Mapping[RowKey, float]
    """What every rank trains with."""


class SharedReference:
    """One rank of it: the first asks and ends, the others follow."""

    def __init__(self, ranks: Ranks, opened: Callable[[], Reference]) -> None:
        """Nothing is loaded yet.

        Args:
            ranks: joined already; closed by the caller.
            opened: gives the reference, divided among the ranks; all call it at the same time, and
                only where something is asked.
        """
        self._ranks, self._opened = ranks, opened
        self.gather = ranks.gather
        """As `TrainBackend.gather`."""

    @property
    def first(self) -> bool:
        """True for rank 0."""
        return self._ranks.rank == 0

    def ask(self, micro_batches: Sequence[MicroBatch]) -> Mapping[RowKey, Any]:
        """Return what `LogProbSource.row_log_probs` does, computed by all ranks; rank 0 calls.

        Raises:
            TrainError: a number that is not finite, or a rank that failed.
        """
        self.gather(list(micro_batches))
        return self._answer(micro_batches)

    def end(self, sums: Mapping[RowKey, float]) -> None:
        """Tell the others what all of them train with; rank 0 calls."""
        self.gather(_LastWord(sums))

    def follow(self) -> Mapping[RowKey, float]:
        """Compute this rank's share of what rank 0 asks until it ends; returns what it knows then.

        Raises:
            TrainError: as in `ask`.
        """
        while not isinstance(order := self.gather(None)[0], _LastWord):
            self._answer(order)
        return order.sums

    def clear_gradients(self) -> None:
        """Nothing: a reference has none."""

    def _answer(self, micro_batches: Sequence[MicroBatch]) -> dict[RowKey, Any]:
        from agentrl.train.backends.agreement import on_every_rank

        reference, size = self._opened(), self._ranks.world_size
        own = list(micro_batches[self._ranks.rank :: size])
        most = -(-len(micro_batches) // size)
        own += [padding_micro_batch()] * (most - len(own))
        found: dict[RowKey, Any] = {}
        for part in on_every_rank(self, lambda: reference.row_log_probs(own)):
            found.update(part)
        return found
