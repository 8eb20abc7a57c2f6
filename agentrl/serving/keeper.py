"""Servers that die or hang are started again, and come back with the newest weights.

alive, and not stuck? --no--> quarantine --> start again --> replace in the client --> recover
                                  ^               |
                                  +-- too often: wait until an hour has fewer restarts

No server is ever given up: a machine that was out of memory for a while has its servers back when
it is not. What a run without any server does is not decided here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from agentrl.engine import Engine
from agentrl.errors import AgentrlError
from agentrl.serving.client import TokenClient

logger = logging.getLogger(__name__)

RESTARTS_PER_HOUR = 6
"""Restarts of each server within any hour; one that needs more waits for its next try."""
LOOK_S = 1.0
"""Seconds between two looks at the processes."""
BACK_OFF_S = 2.0
"""Seconds before the second try to restart a server; doubles with each that fails."""
HOUR_S = 3600.0
"""Seconds over which restarts are counted."""


class Kept(Protocol):
    """A server process, here or on another machine."""

    name: str
    """Name of its engine."""

    async def alive(self) -> bool:
        """True while the process runs, in good health or not."""
        ...

    async def start_again(self) -> Engine:
        """End what is left of it, start it, and connect.

        Raises:
            AgentrlError: it did not start.
        """
        ...


class Keeper:
    """Watches servers until it is cancelled."""

    def __init__(
        self,
        client: TokenClient,
        servers: Sequence[Kept],
        *,
        note: Callable[[str], None],
        restarts_per_hour: int = RESTARTS_PER_HOUR,
        look_s: float = LOOK_S,
        back_off_s: float = BACK_OFF_S,
        hour_s: float = HOUR_S,
    ) -> None:
        """Take the servers.

        Args:
            client: in front of their engines.
            servers: to be kept.
            note: called with what the user should read.
            restarts_per_hour: of each server, tries that fail included.
            look_s: seconds between two looks.
            back_off_s: seconds before the second try to restart a server.
            hour_s: seconds over which restarts are counted.
        """
        self._client = client
        self._servers = list(servers)
        self._note = note
        self._per_hour = restarts_per_hour
        self._look_s = look_s
        self._back_off_s = back_off_s
        self._hour_s = hour_s
        self._recent: dict[str, deque[float]] = {server.name: deque() for server in servers}
        self.restarts: dict[str, int] = {server.name: 0 for server in servers}
        """Restarts so far, by server."""

    async def run(self) -> None:
        """Watch every server, each by itself, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for server in self._servers:
                group.create_task(self._keep(server))

    async def _keep(self, server: Kept) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            try:
                if not await server.alive():
                    await self._bring_back(server, "its process ended")
                elif self._client.is_stuck(server.name):
                    await self._bring_back(server, "it is stuck")
            except Exception as error:  # recording boundary: the others are watched on
                logger.warning("cannot tell whether %s runs: %r", server.name, error)

    async def _bring_back(self, server: Kept, why: str) -> None:
        """Try until it has started."""
        failed = 0
        while True:
            self._quarantine(server, why)
            await self._wait_for_budget(server.name)
            if failed:
                await asyncio.sleep(min(self._back_off_s * 2 ** (failed - 1), self._hour_s))
            if not failed and await server.alive() and not self._client.is_stuck(server.name):
                return  # it came back by itself while its budget was awaited
            self._recent[server.name].append(_now())
            self.restarts[server.name] += 1
            self._note(f"{server.name} is started again: {why}")
            try:
                self._client.replace(server.name, await server.start_again())
                return
            except Exception as error:  # recording boundary: the others are watched on
                known = isinstance(error, AgentrlError)
                logger.warning("%s did not start again: %r", server.name, error, exc_info=not known)
                failed += 1

    def _quarantine(self, server: Kept, why: str) -> None:
        if server.name in self._client.active():
            self._client.quarantine(server.name, why)

    async def _wait_for_budget(self, name: str) -> None:
        """Wait until the last hour has seen fewer restarts of the server than it may."""
        recent, logged = self._recent[name], False
        while True:
            now = _now()
            while recent and now - recent[0] >= self._hour_s:
                recent.popleft()
            if len(recent) < self._per_hour:
                return
            wait_s = recent[0] + self._hour_s - now
            if not logged:
                self._note(
                    f"{name} was started again {len(recent)} times within the hour, the most that "
                    f"is tried; next try in {wait_s / 60:.0f} min"
                )
            logged = True
            await asyncio.sleep(wait_s)


def _now() -> float:
    return asyncio.get_running_loop().time()
