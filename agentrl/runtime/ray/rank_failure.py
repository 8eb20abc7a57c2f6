"""When a trainer rank dies the run ends: every waiting call of the driver is cancelled at once.

Without it a driver whose rank died during a rollout would wait until the last turn has given up on
the engine, and then blame the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from agentrl.errors import RunError
from agentrl.runtime.ray.worker_group import ActorLost, WorkerGroup

T = TypeVar("T")


class RankFailure:
    """Cancels the driver's calls when a trainer rank dies. Belongs to one event loop."""

    def __init__(self, ranks: WorkerGroup) -> None:
        self._ranks = ranks
        self._text = ""
        self._sealed = asyncio.Event()

    async def watch(self) -> None:
        """Wait for a rank to die; runs until it is cancelled, or the ranks are closed."""
        lives = [self._ranks.one(index, "until_closed") for index in range(len(self._ranks))]
        try:
            await asyncio.gather(*lives)
        except ActorLost as error:
            self._text = (
                f"{error}; the ranks train together, so the run ends here. Nothing that was stored "
                "is lost: go on with --resume, and look into logs/ of the run for the reason"
            )
            self._sealed.set()

    async def guard(self, work: Awaitable[T]) -> T:
        """Await `work`, which is cancelled if a rank dies.

        Raises:
            RunError: a rank died.
        """
        task = asyncio.ensure_future(work)
        sealed = asyncio.ensure_future(self._sealed.wait())
        try:
            await asyncio.wait({task, sealed}, return_when=asyncio.FIRST_COMPLETED)
            if self._sealed.is_set():
                raise RunError(self._text)
            return await task
        except ActorLost:
            # The call under way fails first; the watch then names the reason for all calls.
            async with asyncio.timeout(10.0):
                await self._sealed.wait()
            raise RunError(self._text) from None
        finally:
            sealed.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
