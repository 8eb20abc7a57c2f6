"""The engines of a run as the driver sees them: control here, traffic in the workers.

The driver's own client asks for nothing but pauses, weights and health. What it knows of them (who
serves) goes to the workers; what they know (requests, sessions) comes back once a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import AgentrlError, EngineError
from agentrl.metrics import MetricBag
from agentrl.runtime.assembly.engine_addresses import EngineAddress
from agentrl.runtime.engine_wait import Guard, Push, push_or_wait, to_the_end
from agentrl.runtime.ray.rank_failure import RankFailure
from agentrl.runtime.ray.worker_group import ActorLost, WorkerGroup
from agentrl.serving import TokenClient
from agentrl.serving.records import EngineStats, added

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two looks at which engines serve."""


class RayEngines:
    """The `EngineStage` of a run on Ray."""

    def __init__(
        self,
        client: TokenClient,
        workers: WorkerGroup,
        push: Push,
        rank_failure: RankFailure,
        *,
        addresses: Mapping[str, EngineAddress],
        shared: bool,
        wait_s: float = 0.0,
    ) -> None:
        """Keep the engines and the workers that ask them.

        Args:
            client: of the driver.
            workers: of `RolloutActor`; they were opened with all of `addresses`.
            push: makes all engines of `client` sample from the weights of a version.
            rank_failure: ends what is under way when a rank dies.
            addresses: by name; an engine that is restarted changes its entry.
            shared: whether they sample from the tensors that training changes.
            wait_s: seconds to wait for an engine to come back when a sync reached none; 0
                where none ever does.
        """
        self._client, self._workers = client, workers
        self._push, self._rank_failure = push, rank_failure
        self._addresses, self._shared = addresses, shared
        self._wait_s = wait_s
        self.guard: Guard = to_the_end
        """Set by the driver, as in `EngineStage.guard`."""
        self.held = False
        """Whether the clocks of turns stand still, because the engines are paused."""
        self._announced: Sequence[EngineAddress] = tuple(addresses.values())
        self._used_by_all = True
        self._seen: Sequence[Mapping[str, EngineStats]] = ()

    @property
    def version(self) -> int:
        """`version` as in `EngineStage.version`."""
        return self._client.version

    @property
    def shares_weights(self) -> bool:
        """`shares_weights` as in `EngineStage.shares_weights`."""
        return self._shared

    @property
    def serving(self) -> list[EngineAddress]:
        """Addresses of the engines that serve, for workers."""
        return [self._addresses[name] for name in self._client.active()]

    async def pause(self) -> None:
        """`pause` as in `EngineStage.pause`."""
        await self._hold_turns(True)
        await self._rank_failure.guard(self._client.pause_all())

    async def sync(self, version: int) -> MetricBag:
        """`sync` as in `EngineStage.sync`."""
        await self._hold_turns(True)
        work = push_or_wait(
            self._client, self._push, version, wait_s=self._wait_s, guard=self.guard
        )
        try:
            return await self._rank_failure.guard(work)
        finally:
            try:
                await self._announce()
            finally:
                await self._hold_turns(False)

    def stats(self) -> Mapping[str, EngineStats]:
        """Counts of every engine, at most a second old; see `EngineStage`."""
        own = self._client.stats()
        return {name: added(own[name], (s[name] for s in self._seen if name in s)) for name in own}

    async def watch(self) -> None:
        """Keep driver and workers at the same list of engines; runs until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if not self._used_by_all or tuple(self.serving) != self._announced:
                    await self._announce()
                # A worker that is gone is replaced, and opened with the engines of that moment.
                self._seen = [
                    stats for stats in await self._of_each("stats") if isinstance(stats, Mapping)
                ]
            except EngineError as error:
                logger.warning("engines: %s", error)
            except Exception:  # recording boundary: whatever one look meets, the next is taken
                logger.exception("engines: a look at which of them serve failed")

    async def _announce(self) -> None:
        left = {entry.name for entry in self._announced} - set(self._client.names())
        self._announced = serving = tuple(self.serving)
        self._used_by_all = True
        for result in await self._of_each("serve_from", serving, left):
            if isinstance(result, AgentrlError) and not isinstance(result, ActorLost):
                # Asked again within a second; until then it uses the others.
                logger.warning("engines: a worker does not use all that serve: %s", result)
                self._used_by_all = False

    async def _hold_turns(self, held: bool) -> None:
        self.held = held
        for result in await self._of_each("hold_turns", held):
            if isinstance(result, AgentrlError):  # it is gone, and its turns with it
                logger.info("engines: a worker's turns could not be held: %s", result)

    async def _of_each(self, method: str, *args: object) -> list[Any]:
        """Call every live worker; an error of one takes the position of its result."""
        calls = (self._workers.one(index, method, *args) for index in self._workers.usable)
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, AgentrlError):
                raise result
        return results
