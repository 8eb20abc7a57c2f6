"""The sandboxes of one episode, which count the commands that are under way in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from agentrl.sandbox import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from agentrl.sandbox.wrapper import Operation, SandboxWrapper
from agentrl.testing.env_check.findings import broken
from agentrl.types.finding import Finding

_COMMANDS_END_S = 60.0
"""Time that commands get to end once their sandbox is closed."""


class EpisodeSandboxes:
    """The sandboxes of an episode: a shared one, made on first use, and fresh ones."""

    def __init__(
        self, backend: SandboxBackend, limits: SandboxLimits, add: Callable[[Finding], None]
    ) -> None:
        """Take what makes them, the limits of each, and what takes findings."""
        self._backend, self._limits, self._add = backend, limits, add
        self._sandbox: _CountingSandbox | None = None
        self._others: list[_CountingSandbox] = []
        self._closed = False
        # Protects `_sandbox` while it is being made: two callers must get the same one.
        self._opening = asyncio.Lock()

    @property
    def used(self) -> bool:
        """True once one was made."""
        return self._sandbox is not None or bool(self._others)

    async def open(self, spec: SandboxSpec | None = None) -> Sandbox:
        """The sandbox that the whole episode shares."""
        async with self._opening:
            if self._sandbox is None:
                self._sandbox = await self._make(spec)
        return self._sandbox

    async def fresh(self, spec: SandboxSpec | None = None) -> Sandbox:
        """Another sandbox, which nothing has touched."""
        sandbox = await self._make(spec)
        self._others.append(sandbox)
        return sandbox

    async def close(self) -> None:
        """Close all, and report commands that still run."""
        self._closed = True
        sandboxes = [*self._others] if self._sandbox is None else [self._sandbox, *self._others]
        if running := sum(sandbox.running for sandbox in sandboxes):
            message = f"{running} commands still ran in the sandbox after close"
            self._add(broken("E407", message))
        for sandbox in sandboxes:
            await sandbox.close()
        # What the closed sandbox ends is E407 already, not a task that was left behind.
        with suppress(TimeoutError):
            async with asyncio.timeout(_COMMANDS_END_S):
                for sandbox in sandboxes:
                    await sandbox.idle.wait()

    async def _make(self, spec: SandboxSpec | None) -> _CountingSandbox:
        if self._closed:
            self._add(broken("E407", "a sandbox was opened after close"))
            raise RuntimeError("the episode is over")
        return _CountingSandbox(await self._backend.take(spec or SandboxSpec(), self._limits))


class _CountingSandbox(SandboxWrapper):
    """Passes everything on and counts the commands under way."""

    def __init__(self, inner: Sandbox) -> None:
        super().__init__(inner)
        self.running = 0
        self.idle = asyncio.Event()
        self.idle.set()

    @contextmanager
    def around(self, operation: Operation) -> Iterator[None]:
        if operation != "exec":
            yield
            return
        self.running += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()
