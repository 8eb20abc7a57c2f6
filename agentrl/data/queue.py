"""Finished groups between the rollouts and the trainer.

One consumer, any number of producers, one event loop. The queue never blocks a producer: how much
may be begun is decided before (see `staleness`), so a queue that is full is a broken invariant and
not something to wait for. Invariants: an entry is given out once or not at all, also when the
consumer is cancelled while it waits; after `fail` every wait ends with that error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[T]):
    """A finished group and when it began."""

    index: int
    """`Claim.index` of its task."""
    began: int
    """Version of the engines when it began; no token of it is older."""
    item: T
    """The group."""


class TrajectoryQueue(Generic[T]):
    """Entries in the order they came; the consumer chooses which to take.

    Example:
        >>> queue = TrajectoryQueue[str](capacity=2)
        >>> queue.put(Entry(index=0, began=0, item="a"))
        >>> len(queue)
        1
    """

    def __init__(self, *, capacity: int) -> None:
        """An empty queue.

        Args:
            capacity: most entries at once.
        """
        self._capacity = capacity
        self._entries: list[Entry[T]] = []
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Sequence[Entry[T]]:
        """The groups in the queue, oldest first."""
        return tuple(self._entries)

    def put(self, entry: Entry[T]) -> None:
        """Add an entry and wake the consumer."""
        assert len(self._entries) < self._capacity, (
            f"the queue holds {len(self._entries)} groups and may hold {self._capacity}: "
            "more began than the back-pressure allows"
        )
        self._entries.append(entry)
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """No more will come; the consumer gets the first such error."""
        self._error = self._error or error
        self._changed.set()

    async def take(
        self, choose: Callable[[Sequence[Entry[T]]], Sequence[int] | None]
    ) -> list[Entry[T]]:
        """Wait until `choose` finds a batch, and take it out.

        Args:
            choose: given all entries, the positions to take in the order wanted, or None to wait
                for a change.

        Raises:
            BaseException: what `fail` was given.
        """
        while True:
            if self._error is not None:
                raise self._error
            positions = choose(self._entries)
            if positions is not None:
                taken = [self._entries[position] for position in positions]
                gone = set(positions)
                self._entries = [e for i, e in enumerate(self._entries) if i not in gone]
                return taken
            self._changed.clear()
            await self._changed.wait()
