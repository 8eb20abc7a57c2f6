"""The bound on rollouts at once, which follows what the caches of the servers can hold."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping

from agentrl.metrics import MetricBag
from agentrl.serving.pressure import ConversationLimit
from agentrl.serving.records import EngineState, EngineStats, Served, total

MOST = 4
"""The bound grows up to this times the number it began with, where conversations wait for tools."""
LEAST = 16
"""It shrinks down to the number it began with divided by this, where caches are small."""


class RolloutLimit:
    """The most rollouts at once in each loop that begins some, and how many run in all of them.

    Example:
        >>> RolloutLimit(64).groups(8)
        8
    """

    def __init__(self, value: int) -> None:
        """Take the most rollouts at once."""
        self.value = value
        """Most rollouts at once."""
        self.running = 0
        """Rollouts of the groups that have not ended, those included that ended before others of
        their group."""
        self.step = 1
        """Rollouts of the largest group that was asked about: with less room than that, the limit
        counts as reached."""
        self.when_raised: set[Callable[[], None]] = set()
        """Called when the value has grown."""

    def groups(self, n: int) -> int:
        """The most groups of `n` rollouts at once, at least one; `n` is remembered as a `step`."""
        self.step = max(self.step, n)
        return max(1, self.value // n)

    def change(self, value: int) -> None:
        """Set another value; rollouts that run go on."""
        raised, self.value = value > self.value, value
        if raised:
            for react in tuple(self.when_raised):
                react()


class GroupGate:
    """Starts groups of one loop in the order in which they ask, as the limit allows."""

    def __init__(self, limit: RolloutLimit, n: int) -> None:
        """Take the limit and the rollouts of a group."""
        self._limit, self._n = limit, n
        self._groups = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @contextlib.asynccontextmanager
    async def room(self) -> AsyncIterator[None]:
        """Wait until one more group may run, and count it while it does."""
        if self._waiting or self._groups >= self._limit.groups(self._n):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            self._limit.when_raised.add(self._let_in)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave()
                raise
        else:
            self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        self._groups += 1
        self._limit.running += self._n

    def _leave(self) -> None:
        self._groups -= 1
        self._limit.running -= self._n
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._groups < self._limit.groups(self._n):
            turn = self._waiting.popleft()
            if not turn.done():  # else its group was cancelled
                self._enter()
                turn.set_result(None)
        if not self._waiting:
            self._limit.when_raised.discard(self._let_in)


class Concurrency:
    """Rollouts at once: as many as the caches of the engines hold, or a fixed number."""

    def __init__(self, start: int, *, slots_per_engine: int | None = None) -> None:
        """Begin with `start` rollouts at once.

        Args:
            start: the number before anything is observed.
            slots_per_engine: sequences that an engine decodes at once; None keeps the number.
        """
        self.limit = RolloutLimit(start)
        """Bounds the rollouts at once."""
        self._slots = slots_per_engine or 1
        self._wanted = (
            ConversationLimit(value=start, least=max(1, start // LEAST), most=MOST * start)
            if slots_per_engine is not None
            else None
        )

    def observe(self, stats: Mapping[str, EngineStats]) -> None:
        """Take the counts of the engines, about once a second."""
        active = sum(item.state is EngineState.ACTIVE for item in stats.values())
        if self._wanted is None or not active:
            return
        served = total(Served(), *(item.served for item in stats.values()))
        self._wanted.observe(
            served,
            running=self.limit.running,
            step=self.limit.step,
            live=sum(item.sessions for item in stats.values()),
            asked=sum(item.in_flight for item in stats.values()),
            slots=active * self._slots,
        )
        if self._wanted.value != self.limit.value:
            self.limit.change(self._wanted.value)

    def note(self, bag: MetricBag) -> None:
        """Add the limit to the metrics of a step."""
        bag.mean("rollout/concurrency", self.limit.value)
