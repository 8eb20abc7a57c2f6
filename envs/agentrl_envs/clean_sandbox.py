"""A sandbox in which nothing of the model has run yet, whenever one is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agentrl.errors import SandboxError
from agentrl.sandbox import Sandbox

_RESET_S = 5.0
"""Bounds a wipe, which takes a millisecond; a sandbox that was filled up is replaced instead."""


class CleanSandbox:
    """One sandbox of a rollout for code of the model, wiped or replaced between two uses.

    What one turn leaves (files, processes, shared memory, another `python3` on the PATH) is not
    there in the next, so it can neither carry hidden inputs over nor break what comes.
    """

    def __init__(self, new_sandbox: Callable[[], Awaitable[Sandbox]]) -> None:
        """Take the way to another sandbox, `EnvContext.new_sandbox`."""
        self._new = new_sandbox
        self._sandbox: Sandbox | None = None
        self._lent = False

    async def ready(self) -> None:
        """See to it that there is a clean one.

        Raises:
            SandboxError: none could be made; that is no doing of the model.
        """
        if self._sandbox is not None and self._lent:
            try:
                async with asyncio.timeout(_RESET_S):
                    await self._sandbox.reset()
            except (SandboxError, TimeoutError):
                # Of a kind that serves once, or in a state that cannot be wiped.
                await self.discard()
        if self._sandbox is None:
            self._sandbox = await self._new()
        self._lent = False

    async def lend(self) -> Sandbox:
        """The sandbox, clean, to run code of the model in.

        Raises:
            SandboxError: as `ready`.
        """
        if self._sandbox is None or self._lent:
            await self.ready()
        assert self._sandbox is not None
        self._lent = True
        return self._sandbox

    async def discard(self) -> None:
        """End the sandbox; the next one will be new."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()
