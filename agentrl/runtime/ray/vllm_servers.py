"""The vLLM servers of a run as actors, kept alive by the driver's `Keeper`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentrl.engine import Engine
from agentrl.runtime.assembly.engine_addresses import EngineAddress, connect
from agentrl.runtime.ray.engine_actor import EngineReport
from agentrl.runtime.ray.worker_group import ActorLost, WorkerGroup, ask

if TYPE_CHECKING:
    from agentrl.serving.vllm.pictures import PictureSource

logger = logging.getLogger(__name__)

ASK_S = 30.0
"""Seconds an actor has to report whether its server runs."""


class ServerActor:
    """One of them; see `agentrl.serving.keeper.Kept`."""

    def __init__(
        self,
        group: WorkerGroup,
        index: int,
        start: Callable[[int], Any],
        addresses: dict[str, EngineAddress],
        *,
        name: str,
        open_limit_s: float,
        pictures: PictureSource | None = None,
    ) -> None:
        """Take an opened actor.

        Args:
            group: of `EngineActor`.
            index: of this one.
            start: makes a new actor for an index.
            addresses: by name; this one's changes when the server is started again.
            name: of the engine.
            open_limit_s: seconds a server may take to start.
            pictures: images of the run.
        """
        self.name = name
        self._group, self._index, self._start = group, index, start
        self._addresses = addresses
        self._open_limit_s, self._pictures = open_limit_s, pictures

    async def alive(self) -> bool:
        """True while actor and server run. An actor that is slow to answer is not dead."""
        try:
            async with asyncio.timeout(ASK_S):
                return await self._group.one(self._index, "alive")
        except ActorLost:
            return False
        except TimeoutError:
            logger.warning("%s: its actor does not answer within %g s", self.name, ASK_S)
            return True

    async def start_again(self) -> Engine:
        """Restart the server as in `Kept`: in the same actor if that lives, else in a new one."""
        try:
            report = await self._within(self._group.one(self._index, "restart"))
        except ActorLost:
            handle = self._start(self._index)
            report = await self._within(ask(handle, "open", who=self.name))
            self._group.replace(self._index, handle)
        self._addresses[self.name] = report.engine
        return await connect(report.engine, pictures=self._pictures)

    async def _within(self, call: Any) -> EngineReport:
        try:
            async with asyncio.timeout(self._open_limit_s):
                return await call
        except TimeoutError:
            raise ActorLost(
                f"{self.name} did not start within {self._open_limit_s:g} s", self._index
            ) from None
