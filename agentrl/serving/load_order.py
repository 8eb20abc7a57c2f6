"""The engine with the least load, without looking at all of them.

A heap of loads, of which some are out of date: a change adds an entry, and an entry that is no
longer true is dropped when it comes to the top. A heap of many such entries is built again, so a
change and a choice cost O(log n) on average, for n engines.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

_Load = tuple[int, int, int]
_MOST_ENTRIES = 8
"""Entries for each engine from which on the heap is built again."""


class LoadOrder:
    """Engines by load: requests in flight, then sessions, then rank.

    Example:
        >>> order = LoadOrder()
        >>> order.put("a", (2, 0, 0)); order.put("b", (1, 5, 1))
        >>> order.first(), order.first(avoid=["b"])
        ('b', 'a')
    """

    def __init__(self) -> None:
        self._loads: dict[str, _Load] = {}
        self._heap: list[tuple[_Load, str]] = []

    def __len__(self) -> int:
        """Engines that are known."""
        return len(self._loads)

    def put(self, name: str, load: _Load) -> None:
        """Add an engine, or change its load.

        Args:
            name: of the engine.
            load: requests in flight, sessions, and a rank that no other engine has.
        """
        self._loads[name] = load
        heapq.heappush(self._heap, (load, name))
        if len(self._heap) > _MOST_ENTRIES * (len(self._loads) + 1):
            self._heap = [(known, engine) for engine, known in self._loads.items()]
            heapq.heapify(self._heap)

    def discard(self, name: str) -> None:
        """Forget an engine, if it is known."""
        self._loads.pop(name, None)

    def first(self, avoid: Collection[str] = ()) -> str | None:
        """The engine with the least load; None if there is none.

        Args:
            avoid: engines that are passed over.
        """
        passed: list[tuple[_Load, str]] = []
        found: str | None = None
        while self._heap and found is None:
            load, name = self._heap[0]
            if self._loads.get(name) != load:
                heapq.heappop(self._heap)
            elif name in avoid:
                passed.append(heapq.heappop(self._heap))
            else:
                found = name
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return found
