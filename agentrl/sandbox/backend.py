"""The contract of a backend, which makes sandboxes, and what a task may ask of it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentrl.errors import SandboxError
from agentrl.sandbox.contract import Sandbox, Snapshot
from agentrl.sandbox.records import Probe, SandboxLimits

Prepare = Callable[[Sandbox], Awaitable[None]]
"""Fills a fresh sandbox: uploads a repository, installs a fixture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """Requirements of a task on its sandbox; the defaults are those of the config."""

    image: str = ""
    """Container image; empty takes the backend's own. Backends without images refuse any other."""
    limits: SandboxLimits | None = None
    """Limits of this sandbox; None takes those of the config."""
    key: str = ""
    """Names what `prepare` makes. Sandboxes of one key (the siblings of a group, and the one that
    grades) are forks of a work directory that was prepared once."""
    prepare: Prepare | None = None
    """Fills the work directory; run once per key, or once per sandbox where `key` is empty."""


class SandboxBackend(ABC):
    """Makes sandboxes of one kind."""

    name: str
    """As in `sandbox.backend` of a config."""
    starts_fast: bool = False
    """Whether a start takes some 20 ms, so that a pool need not bound how many start at once."""

    @abstractmethod
    async def probe(self) -> Probe:
        """Try the backend once and report what it can do. Never raises."""

    @abstractmethod
    async def create(
        self, limits: SandboxLimits, snapshot: Snapshot | None = None, *, image: str = ""
    ) -> Sandbox:
        """Make a sandbox with an empty work directory, or one filled from `snapshot`.

        Args:
            limits: its hard limits.
            snapshot: of a sandbox of this backend.
            image: container image; empty takes the backend's own.

        Raises:
            SandboxUnavailable: no such image, or a backend without images was asked for one.
            SandboxError: it could not be made.
        """

    async def take(
        self,
        spec: SandboxSpec,
        limits: SandboxLimits,
        *,
        timeout_s: float | None = None,
        more: bool = False,
    ) -> Sandbox:
        """A sandbox as a task wants it. Pools override this to prepare once and to fork.

        Args:
            spec: what is wanted.
            limits: those of the config, for a spec without its own.
            timeout_s: bounds making and preparing it, each; not the wait for a slot.
            more: the caller holds a sandbox already, so it is not made to wait for a slot: two
                that waited for each other's would wait for ever.

        Raises:
            SandboxError: as `create`, or it took too long; also whatever `prepare` raises.
        """
        scope = asyncio.timeout(timeout_s)
        try:
            async with scope:
                return await self._make(spec, limits)
        except TimeoutError:
            if not scope.expired():
                raise
            raise SandboxError(
                f"sandbox backend {self.name!r} did not open a sandbox in {timeout_s:g} s"
            ) from None

    async def _make(self, spec: SandboxSpec, limits: SandboxLimits) -> Sandbox:
        # Backends without images need not know the word.
        limits = spec.limits or limits
        make = self.create(limits, image=spec.image) if spec.image else self.create(limits)
        sandbox = await make
        if spec.prepare is not None:
            try:
                await spec.prepare(sandbox)
            except BaseException:
                await sandbox.close()
                raise
        return sandbox

    @abstractmethod
    async def close(self) -> None:
        """Close every sandbox still open. Idempotent."""
