"""Keeps rollouts in flight, as many as the back-pressure allows.

There is no loop to wake: `fill` is called after every event that may let a group begin (one has
ended, a step was trained, weights were swapped). A group that ends puts itself into the queue and
starts another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from agentrl.data.queue import Entry, TrajectoryQueue
from agentrl.data.staleness import BackPressure
from agentrl.data.tasks.cursor import Claim, TaskCursor
from agentrl.runtime.drivers.concurrency import RolloutLimit
from agentrl.runtime.stages import GroupHandle

RunGroup = Callable[[Claim], Coroutine[Any, Any, GroupHandle]]


class Rollouter:
    """Groups in flight; must be closed by its maker."""

    def __init__(
        self,
        run_group: RunGroup,
        *,
        cursor: TaskCursor,
        pressure: BackPressure,
        queue: TrajectoryQueue[GroupHandle],
        version: Callable[[], int],
        limit: RolloutLimit,
        n: int,
        most: int,
    ) -> None:
        """Begin nothing yet.

        Args:
            run_group: makes one group; never raises for a failed rollout.
            cursor: where tasks come from.
            pressure: whether another group may begin.
            queue: where finished groups go.
            version: what the engines sample from now.
            limit: bounds the rollouts at once.
            n: rollouts of a group.
            most: groups at once, whatever the limit allows.
        """
        self._run_group = run_group
        self._cursor = cursor
        self._pressure = pressure
        self._queue = queue
        self._version = version
        self._limit, self._n, self._most = limit, n, most
        limit.when_raised.add(self.fill)
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[int, int] = {}  # index -> version at which it began
        self._open = False
        self._none_runs = asyncio.Event()
        self._none_runs.set()
        self._use = CapacityUse()

    @property
    def running(self) -> Sequence[int]:
        """Engine version at which each group in flight began."""
        return tuple(self._running.values())

    @property
    def is_open(self) -> bool:
        """Groups begin as soon as they may."""
        return self._open

    @property
    def _capacity(self) -> int:
        return min(self._most, self._limit.groups(self._n))

    def open(self) -> None:
        """Begin groups from now on."""
        self._open = True
        self.fill()

    def hold(self) -> None:
        """Begin no group; those in flight go on."""
        self._open = False

    async def drained(self) -> None:
        """Wait until no group is in flight; the time limits of a rollout are those of this wait."""
        await self._none_runs.wait()

    def fill(self) -> None:
        """Start groups until back-pressure or capacity forbids."""
        while self._open and len(self._running) < self._capacity and self._pressure.allows():
            self._begin(self._cursor.claim())

    def idle_share(self) -> float:
        """Share of the capacity that was unused since the last call, over time."""
        return self._use.idle_share(_now(), len(self._running), self._capacity)

    async def close(self) -> None:
        """Cancel what is in flight, wait until it has cleaned up, and release its tasks."""
        self._open = False
        self._limit.when_raised.discard(self.fill)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, claim: Claim) -> None:
        self._pressure.begin()
        self._note_change(1)
        self._running[claim.index] = self._version()
        self._none_runs.clear()
        task = asyncio.create_task(self._one(claim), name=f"group {claim.index}")
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, claim))

    async def _one(self, claim: Claim) -> None:
        group = await self._run_group(claim)
        # It is no longer in flight when the trainer wakes and looks at both.
        began = self._leave(claim.index)
        self._queue.put(Entry(index=claim.index, began=began, item=group))
        self.fill()

    def _note_change(self, change: int) -> None:
        self._use.note(_now(), len(self._running), self._capacity)
        self._limit.running += change * self._n

    def _leave(self, index: int) -> int:
        self._note_change(-1)
        began = self._running.pop(index)
        if not self._running:
            self._none_runs.set()
        return began

    def _ended(self, task: asyncio.Task[None], claim: Claim) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if claim.index in self._running:  # it was cancelled, and its task is to be rolled out again
            self._leave(claim.index)
            self._cursor.release(claim.index)
            self._pressure.drop()
        if error is not None:
            # A worker never raises for a failed rollout, so this is a broken invariant.
            self._open = False
            self._queue.fail(error)


class CapacityUse:
    """Adds up over time how much of a capacity, which may change, is used."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._used_s = 0.0
        self._whole_s = 0.0

    def note(self, now: float, used: int, capacity: int) -> None:
        """Count `used` of `capacity` units as in use from the last call until `now`."""
        if self._since is not None:
            self._used_s += used * (now - self._since)
            # A capacity that has shrunk may be exceeded by what began before.
            self._whole_s += max(used, capacity) * (now - self._since)
        self._since = now

    def idle_share(self, now: float, used: int, capacity: int) -> float:
        """The unused share since the last call; 0 before anything was noted."""
        self.note(now, used, capacity)
        share = 1 - self._used_s / self._whole_s if self._whole_s > 0 else 0.0
        self._used_s = self._whole_s = 0.0
        return share


def _now() -> float:
    return asyncio.get_running_loop().time()
