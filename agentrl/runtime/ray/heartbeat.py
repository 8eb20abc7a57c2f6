"""Ends actors that give no sign of life; callers get the error of an actor that died.

A group of rollouts has no time limit of its own, on Ray as in one process: its rollouts have
theirs, and those stand still while a rollout waits for a sandbox. What only Ray has is a process
that stands still (stopped, swapped out, its event loop blocked) and that no limit inside of it can
end. So every actor is asked for a beat, which a process that waits answers and one that hangs does
not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from agentrl.runtime.ray.worker_group import ActorLost, WorkerGroup

logger = logging.getLogger(__name__)

BEATS_ASKED = 2
"""Beats in a row that an actor may owe: a driver that stood still itself excuses one."""
LONGEST_PAUSE_S = 15.0
"""Seconds between two beats, where the limit does not ask for more of them."""


def end_actor(handle: Any) -> None:
    """Kill the process of an actor, also one that is stopped; its calls fail with `ActorLost`."""
    import ray

    ray.kill(handle, no_restart=True)


class Heartbeat:
    """Asks the actors of a group for beats. Belongs to one event loop."""

    def __init__(
        self,
        group: WorkerGroup,
        *,
        limit_s: float,
        lost: Callable[[int], object] = lambda index: None,
        end: Callable[[Any], None] = end_actor,
    ) -> None:
        """Take the actors.

        Args:
            group: its actors have a method `beat`.
            limit_s: seconds of silence after which an actor counts as hanging.
            lost: called with the index of an actor that died or was ended.
            end: ends an actor by its handle.
        """
        self._group, self._limit_s = group, limit_s
        self._lost, self._end = lost, end

    async def watch(self) -> None:
        """Ask all of them, side by side; runs until it is cancelled."""
        async with asyncio.TaskGroup() as listening:
            for index in range(len(self._group)):
                listening.create_task(self._listen(index))

    async def _listen(self, index: int) -> None:
        while True:
            try:
                await self._ask_for_beats(index)
            except Exception:  # recording boundary: whatever fails, the others are listened to
                logger.exception("%s %d could not be asked for a beat", self._group.name, index)

    async def _ask_for_beats(self, index: int) -> None:
        group, owed = self._group, 0
        listened: Any = None
        while True:
            if not owed:
                await asyncio.sleep(min(LONGEST_PAUSE_S, self._limit_s / 4))
            handle = group.handle(index)
            if index not in group.usable:
                owed = 0
                continue
            if handle is not listened:
                listened, owed = handle, 0
            try:
                async with asyncio.timeout(self._limit_s / BEATS_ASKED):
                    await group.one(index, "beat")
            except ActorLost:
                owed = 0
                if group.handle(index) is handle:
                    self._lost(index)
            except TimeoutError:
                owed += 1
                if owed >= BEATS_ASKED and group.handle(index) is handle:
                    owed = 0
                    self._end_silent(index, handle)
            else:
                owed = 0

    def _end_silent(self, index: int, handle: Any) -> None:
        logger.warning(
            "%s %d gave no sign of life for %g s (runtime.hang_timeout_s) and is ended; something "
            "blocks its event loop, or the process is stopped: the end of its log in logs/ says "
            "what it did last",
            self._group.name,
            index,
            self._limit_s,
        )
        self._end(handle)
        self._lost(index)
