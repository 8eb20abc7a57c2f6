"""Servers that die are started again, not too often, and come back with the newest weights.

alive? --no--> quarantine --> start again --> replace in the client --> recover --> serves
                                  |
                                  +-- too often: stays out, and the run goes on without it
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from agentrl.engine import Engine
from agentrl.errors import AgentrlError
from agentrl.serving.client import TokenClient

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""Restarts of one server, failed ones included, before it is given up."""
LOOK_S = 1.0
"""Seconds between two looks at the processes."""
BACK_OFF_S = 2.0
"""Seconds before the second restart of a server; doubles with each."""


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
        look_s: float = LOOK_S,
        back_off_s: float = BACK_OFF_S,
    ) -> None:
        """Take the servers.

        Args:
            client: in front of their engines.
            servers: to be kept.
            note: called with what the user should read.
            look_s: seconds between two looks.
            back_off_s: seconds before the second restart of a server.
        """
        self._client = client
        self._servers = list(servers)
        self._note = note
        self._look_s = look_s
        self._back_off_s = back_off_s
        self.restarts: dict[str, int] = {server.name: 0 for server in servers}
        """Restarts so far, by server."""

    async def run(self) -> None:
        """Watch every server, each by itself, until cancelled or all are given up."""
        async with asyncio.TaskGroup() as group:
            for server in self._servers:
                group.create_task(self._keep(server))

    async def _keep(self, server: Kept) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            try:
                if await server.alive():
                    continue
            except Exception as error:  # recording boundary: the others are watched on
                logger.warning("cannot tell whether %s runs: %r", server.name, error)
                continue
            if not await self._bring_back(server):
                return

    async def _bring_back(self, server: Kept) -> bool:
        while self.restarts[server.name] < MAX_RESTARTS:
            tried = self.restarts[server.name]
            self.restarts[server.name] = tried + 1
            try:
                await self._restart(server, tried)
            except Exception as error:  # recording boundary: the others are watched on
                known = isinstance(error, AgentrlError)
                logger.warning("%s did not start again: %r", server.name, error, exc_info=not known)
                continue
            return True
        self._note(f"{server.name} is given up after {MAX_RESTARTS} restarts")
        return False

    async def _restart(self, server: Kept, tried: int) -> None:
        self._client.quarantine(server.name, "its process ended")
        if tried:
            await asyncio.sleep(self._back_off_s * 2 ** (tried - 1))
        self._note(f"{server.name} ended; starting it again ({tried + 1} of {MAX_RESTARTS})")
        self._client.replace(server.name, await server.start_again())
