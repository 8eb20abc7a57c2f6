"""`PooledBackend`: any backend, made to serve hundreds of rollouts at once.

    take --slot---> prepared work --idle one?--> fill it ------------------> lease
           (line)   (once per key)     |no                                    |
                                  start slot -> breaker -> create, retried    close
                                   (line)                                     |
    slot free <----- idle, if it can be wiped and may serve again; else closed

Waiting in a line has no limit of its own: it is back-pressure, and `Origin.waited_s` has how long a
lease waited. Everything else is bounded by `timeout_s`. A slot is taken before work is
prepared, so no snapshot is made that cannot be used yet; makers need no slot, only one of a few
turns, so leases that hold slots never wait for those that want one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from agentrl.errors import SandboxError, SandboxUnavailable
from agentrl.sandbox import (
    Origin,
    Prepare,
    Probe,
    Sandbox,
    SandboxBackend,
    SandboxLimits,
    SandboxSpec,
    Snapshot,
)
from agentrl_sandboxes.pool.breaker import Breaker
from agentrl_sandboxes.pool.capacity import CLOSED, PoolCapacity
from agentrl_sandboxes.pool.idle import IdleSandboxes, young
from agentrl_sandboxes.pool.lease import Held, Lease, SandboxKind
from agentrl_sandboxes.pool.prepared import PreparedWork
from agentrl_sandboxes.pool.starts import Starts, end_quietly

logger = logging.getLogger(__name__)

START_S = 120.0
"""Bounds a start for callers that set no limit."""
WIPE_S = 20.0
"""Bounds the wipe of a used sandbox; one that takes longer is closed."""
ALIVE_S = 10.0
"""Bounds the request that shows that an idle sandbox is alive; it takes a millisecond."""


class PooledBackend(SandboxBackend):
    """Capacity, warm sandboxes, prepared work and retried starts, around a backend."""

    def __init__(
        self,
        inner: SandboxBackend,
        *,
        warm: int = 0,
        max_open: int = 256,
        starts_at_once: int = 4,
        prepares_at_once: int = 4,
        max_uses: int = 1,
        prepared: int = 64,
        prepared_bytes: int = 2**30,
        breaker: Breaker | None = None,
    ) -> None:
        """Wrap `inner`, which is closed with the pool.

        Args:
            inner: makes the sandboxes.
            warm: idle sandboxes kept ready, of each of the last few kinds that were asked for.
            max_open: slots. A rollout that holds one and grades in another exceeds it.
            starts_at_once: sandboxes started at the same time.
            prepares_at_once: work directories prepared at the same time, each in a sandbox that
                needs no slot.
            max_uses: loans a sandbox serves if it offers `reset`.
            prepared: work directories kept, beside those in use.
            prepared_bytes: memory they may take.
            breaker: says when failing starts are left alone for a while.
        """
        self.name = inner.name
        self._inner = inner
        self._max_open = max_open
        self._max_uses = max_uses
        self._capacity = PoolCapacity(max_open)
        self._starts = Starts(inner, at_once=starts_at_once, breaker=breaker or Breaker())
        self._makers = asyncio.Semaphore(prepares_at_once)
        self._idle = IdleSandboxes(self._starts, warm=warm, refill=self._refill)
        self._prepared = PreparedWork(entries=prepared, size_bytes=prepared_bytes)
        self._leases: set[Lease] = set()
        self._closed = False

    async def probe(self) -> Probe:
        """Try the backend inside; see `SandboxBackend.probe`."""
        return await self._inner.probe()

    async def create(
        self, limits: SandboxLimits, snapshot: Snapshot | None = None, *, image: str = ""
    ) -> Sandbox:
        """Lend a sandbox; see `SandboxBackend.create`."""
        kind = SandboxKind(image=image, limits=limits)
        async with self._slot(more=False) as waited_s:
            return await self._lend(kind, snapshot, START_S, waited_s)

    async def take(
        self,
        spec: SandboxSpec,
        limits: SandboxLimits,
        *,
        timeout_s: float | None = None,
        more: bool = False,
    ) -> Sandbox:
        """Lend a sandbox as a task wants it; see `SandboxBackend.take`."""
        kind = SandboxKind(image=spec.image, limits=spec.limits or limits)
        limit_s = START_S if timeout_s is None else timeout_s
        async with self._slot(more=more) as waited_s:
            if spec.prepare is None:
                return await self._lend(kind, None, limit_s, waited_s)
            if spec.key:
                return await self._fork(kind, spec.key, spec.prepare, limit_s, waited_s)
            lease = await self._lend(kind, None, limit_s, waited_s)
            try:
                await self._prepare(spec.prepare, lease, "a sandbox", limit_s)
            except BaseException:
                # Leaving the block releases the slot.
                lease.holds_slot = False
                await lease.close()
                raise
            return lease

    async def close(self) -> None:
        """Close every sandbox, lent, idle or being made. Idempotent."""
        self._closed = True
        self._capacity.close()
        await self._prepared.close()
        await asyncio.gather(*(lease.close() for lease in list(self._leases)))
        await self._idle.close()
        await self._starts.close()
        await self._inner.close()

    @contextlib.asynccontextmanager
    async def _slot(self, *, more: bool) -> AsyncIterator[float]:
        """A slot, kept by the lease that is made inside the block; yields the seconds in line."""
        now = asyncio.get_running_loop().time
        began = now()
        await self._capacity.take(more=more)
        try:
            yield now() - began
        except BaseException:
            self._capacity.release()
            raise

    async def _fork(
        self, kind: SandboxKind, key: str, prepare: Prepare, limit_s: float, waited_s: float
    ) -> Lease:
        async def make() -> Snapshot:
            # A turn of its own: hundreds of groups may begin at once.
            async with self._makers:
                lease = await self._lend(kind, None, limit_s, 0.0, holds_slot=False)
                try:
                    await self._prepare(prepare, lease, repr(key), limit_s)
                    return await lease.snapshot()
                finally:
                    await lease.close()

        async with self._prepared.use((key, kind.image), make) as snapshot:
            return await self._lend(kind, snapshot, limit_s, waited_s, forked=True)

    async def _prepare(self, prepare: Prepare, lease: Lease, what: str, limit_s: float) -> None:
        scope = asyncio.timeout(limit_s)
        try:
            async with scope:
                await prepare(lease)
        except TimeoutError:
            if not scope.expired():
                raise
            raise SandboxError(
                f"sandbox: preparing {what} took longer than {limit_s:g} s"
            ) from None

    async def _lend(
        self,
        kind: SandboxKind,
        snapshot: Snapshot | None,
        limit_s: float,
        waited_s: float,
        *,
        forked: bool = False,
        holds_slot: bool = True,
    ) -> Lease:
        """A sandbox of one kind that is empty, or holds `snapshot`."""
        held = await self._idle_one(kind, snapshot, limit_s)
        warm = held is not None and held.uses == 0
        if held is None:
            self._idle.shrink(self._max_open - self._capacity.taken, keep=kind)
            started = await self._starts.start(kind, snapshot, limit_s=limit_s)
            held, waited_s = started.held, waited_s + started.waited_s
        if self._closed:
            await end_quietly(held.sandbox)
            raise SandboxError(CLOSED)
        origin = Origin(waited_s=waited_s, warm=warm, reused=held.uses > 0, forked=forked)
        held.uses += 1
        lease = Lease(held, origin, self._release, holds_slot=holds_slot)
        self._leases.add(lease)
        self._refill()
        return lease

    async def _idle_one(
        self, kind: SandboxKind, snapshot: Snapshot | None, limit_s: float
    ) -> Held | None:
        """An idle sandbox that is alive, filled with `snapshot`; None if there is none."""
        now = asyncio.get_running_loop().time
        until = now() + limit_s
        while now() < until and (held := self._idle.pop(kind)):
            try:
                if snapshot is None:
                    async with asyncio.timeout(min(ALIVE_S, until - now())):
                        # One that has run programs need only answer; `true` costs four times that.
                        await (held.sandbox.reset() if held.uses else held.sandbox.exec(("true",)))
                else:
                    async with asyncio.timeout_at(until):
                        await held.sandbox.fill(snapshot)
            except SandboxUnavailable:
                # It cannot be filled; it stays idle for a caller that wants an empty one.
                self._idle.put(held)
                return None
            except Exception as error:  # recording boundary: a user's backend may raise anything
                logger.info("an idle sandbox had died: %s", error)
                self._starts.end(held.sandbox)
            except BaseException:
                self._starts.end(held.sandbox)
                raise
            else:
                return held
        return None

    async def _release(self, lease: Lease) -> None:
        held = lease.held
        try:
            if await self._wiped(lease):
                self._idle.put(held)
            else:
                await end_quietly(held.sandbox)
        finally:
            self._leases.discard(lease)
            if lease.holds_slot:
                self._capacity.release()
            self._refill()

    async def _wiped(self, lease: Lease) -> bool:
        """Wipe the sandbox; True if it may serve again and is as good as new now."""
        held = lease.held
        if self._closed or not lease.clean or held.uses >= self._max_uses or not young(held):
            return False
        if self._idle.count + self._capacity.taken > self._max_open:
            # Those that graded in a second sandbox would leave more idle ones than can be open.
            return False
        try:
            async with asyncio.timeout(WIPE_S):
                await held.sandbox.reset()
        except SandboxUnavailable as error:
            logger.info("sandboxes are used once: %s", error)
            self._max_uses = 1
            return False
        except Exception as error:  # recording boundary: a user's backend may raise anything
            logger.info("a sandbox is not used again: %s", error)
            return False
        return True

    def _refill(self) -> None:
        if self._starts.calm and not self._closed:
            self._idle.refill(self._max_open - self._capacity.taken)
