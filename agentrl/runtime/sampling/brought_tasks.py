"""Groups of tasks that agents bring to a run that records: each of one rollout, beside the dataset.

They are begun when they come, so no driver that trains knows them: a group that is trained needs
its task, and all its rollouts, before the first of them begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

from agentrl.gateway.outside import BeginTask, BegunTask
from agentrl.runtime.drivers.groups import GroupRunner, stable_seed
from agentrl.types import SamplingParams, Task

G = TypeVar("G")

TakingTasks = Callable[[BeginTask, int], AbstractAsyncContextManager[None]]
"""Accepts tasks that agents bring while its block runs, at most so many at once."""


class BroughtTasks(Generic[G]):
    """The groups of those tasks."""

    def __init__(
        self,
        runner: GroupRunner[G],
        *,
        sampling: SamplingParams,
        seed: int,
        on_group: Callable[[G], None],
    ) -> None:
        """Take what makes a group; `on_group` is called as each ends."""
        self.groups: list[G] = []
        """Those that have ended."""
        self._runner = runner
        self._sampling = sampling
        self._seed = seed
        self._on_group = on_group
        self._numbers = itertools.count()
        self._running: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def taken(self, taking: TakingTasks | None, *, most: int) -> AsyncIterator[None]:
        """Take tasks while the block runs; groups that have not ended by then are cancelled."""
        try:
            async with taking(self.begin, most) if taking else contextlib.nullcontext():
                yield
        finally:
            for one in self._running:
                one.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def begin(self, task: Task) -> BegunTask:
        """Begin the group of a task."""
        group = f"own/{next(self._numbers):04d}-{task.id}"
        running = asyncio.create_task(self._run(task, group))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return BegunTask(group=group, running=running)

    async def rest(self) -> None:
        """Wait until no group is under way; one that broke an invariant raises here."""
        while self._running:
            done, _ = await asyncio.wait(self._running)
            for one in done:
                if not one.cancelled():
                    one.result()

    async def _run(self, task: Task, group_id: str) -> None:
        group = await self._runner.run_group(
            task,
            group_id=group_id,
            n=1,
            sampling=self._sampling,
            seed=stable_seed(self._seed, group_id),
        )
        self.groups.append(group)
        self._on_group(group)
