"""When a trainer rank dies every waiting call of the driver is cancelled at once.

Without it a driver whose rank died during a rollout would wait until the last turn has given up on
the engine, and then blame the engine; and one whose rank died inside a collective would wait until
the other ranks have given up on that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from agentrl.errors import AgentrlError, EngineError, RanksParted
from agentrl.machine.processes.stop import Interrupted
from agentrl.runtime.rank_restarts import RankLost
from agentrl.runtime.ray.worker_group import ActorLost, WorkerGroup

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEATH_KNOWN_S = 10.0
"""Seconds until a rank that died is known to have died. The ranks that it left in a collective may
fail first, and the call under way with them."""


class RankFailure:
    """Cancels the driver's calls when a trainer rank dies. Belongs to one event loop."""

    def __init__(self, ranks: WorkerGroup) -> None:
        self._ranks = ranks
        self._text = ""
        self._died = asyncio.Event()

    async def watch(self) -> None:
        """Wait for a rank to die; runs until it is cancelled, or the ranks are closed."""
        lives = [self._ranks.one(index, "until_closed") for index in range(len(self._ranks))]
        try:
            await asyncio.gather(*lives)
        except ActorLost as error:
            self._ranks.retire(error.index)
            self._text = str(error)
            logger.warning("%s", error)
            self._died.set()

    async def guard(self, work: Awaitable[T]) -> T:
        """Await `work`, which is cancelled if a rank dies.

        Raises:
            RankLost: a rank died.
            Interrupted: as raised by `work`, at once.
            AgentrlError: as raised by `work` while all ranks live.
        """
        task = asyncio.ensure_future(work)
        died = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({task, died}, return_when=asyncio.FIRST_COMPLETED)
            if self._died.is_set():
                raise RankLost(self._text)
            return await task
        except Interrupted:
            raise  # the driver was asked to stop, which says nothing of a rank
        except Exception as error:
            if not _may_follow_a_death(error):
                raise
            try:
                async with asyncio.timeout(DEATH_KNOWN_S):
                    await self._died.wait()
            except TimeoutError:
                raise error from None  # all ranks live: the reason is another one
            raise RankLost(self._text) from error
        finally:
            died.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait([task])


def _may_follow_a_death(error: Exception) -> bool:
    """A rank that died may be the reason, as the engine on it has died, too."""
    if isinstance(error, ActorLost | RanksParted | EngineError):
        return True
    return not isinstance(error, AgentrlError | OSError)
