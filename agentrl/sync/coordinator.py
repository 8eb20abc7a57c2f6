"""`WeightSync`: every engine on the same version, or out of service.

    staged      send . stage on all | pause | load on all | resume
    streaming                       | pause | announce, (send || load on all) | resume

Invariants:

- Nothing that serves goes on with an older version than another: engines that fail are quarantined
  before the others go on, and come back through `catch_up`.
- A push that fails on every engine leaves them paused and raises: there is nothing to go on with.
- Staged weights stay, so an engine can catch up at any time, also with those that a push failed to
  bring to anybody. A streaming backend has nothing to give between two pushes; an engine that is
  well again takes part in the next one, in a new group, even if no other serves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from agentrl.engine import Engine, WeightTicket
from agentrl.errors import EngineError, SyncError
from agentrl.machine.compute_threads import run_computing
from agentrl.metrics import MetricBag
from agentrl.serving.client import TokenClient
from agentrl.serving.loop_timeout import LoopTimeout
from agentrl.serving.member import ANSWER_LIMIT_S
from agentrl.sync.broadcast import broadcast
from agentrl.sync.transfer import WeightSender

if TYPE_CHECKING:
    from torch import Tensor

WeightsFactory = Callable[[], "Iterable[tuple[str, Tensor]]"]
"""Called once for each attempt to send; where other trainer ranks must drain, it starts that."""
ATTEMPTS = 4
"""Groups that one push of a streaming backend tries: whole, again, less those that fail, again."""
POLL_S = 0.005
"""Seconds between two looks at what is in flight."""


class WeightSync:
    """Brings weights from one sender to all engines behind a client."""

    def __init__(
        self,
        client: TokenClient,
        sender: WeightSender,
        *,
        limit_s: float = 120.0,
        drain_limit_s: float = 3600.0,
    ) -> None:
        """Take both, and become the way back for quarantined engines.

        Args:
            client: whose `recover` is set to `catch_up`.
            sender: of any backend.
            limit_s: seconds that an engine may take to meet a streaming sender, and to end after
                its send; as the limit of that sender, `sync.timeout_s`.
            drain_limit_s: seconds that `push` in mode `wait` waits for turns to end.
        """
        self.client = client
        """Client of the engines that get the weights."""
        self._sender = sender
        self._limit_s = limit_s
        self._drain_limit_s = drain_limit_s
        self._newest: WeightTicket | None = None
        # Engines of the streaming group there is; none where it must be built again.
        self._members: list[Engine] = []
        client.recover = self.catch_up

    async def connect(self) -> None:
        """Introduce the sender to every engine, before training starts.

        Raises:
            SyncError: an engine cannot be reached by this backend.
        """
        names = self.client.names()
        failed = await self._meet(names)
        if failed:
            raise SyncError(
                f"backend {self._sender.backend!r} does not reach {_details(failed)}"
            ) from next(iter(failed.values()))

    async def push(
        self, weights: WeightsFactory, version: int, *, mode: Literal["keep", "wait"] = "keep"
    ) -> MetricBag:
        """Bring new weights to every engine that serves.

        Args:
            weights: a fresh iteration over all weights.
            version: larger than that of any engine.
            mode: `keep` freezes turns in mid-generation, `wait` lets them end first; who calls it
                then sees to it that no more begin.

        Raises:
            SyncError: they could not be sent, or no engine took them; all stay paused then.
        """
        bag = MetricBag()
        started = time.perf_counter()
        ticket: WeightTicket | None = None
        if not self._sender.streams:
            ticket = await run_computing(self._sender.send, weights(), version)
            sent = time.perf_counter()
            bag.mean("sync/stage_s", sent - started)
            await self.client.stage_weights(ticket)
            bag.mean("sync/prepare_s", time.perf_counter() - sent)
        if mode == "wait":
            await self._wait_for_turns()
        stopping = time.perf_counter()
        if ticket is not None:
            self._newest = ticket
        try:
            await self.client.pause_all(or_none=self._sender.streams)
            loading = time.perf_counter()
            bag.mean("sync/stop_s", loading - stopping)
            if ticket is None:
                ticket = await self._stream(weights, version)
            else:
                await self.client.load_weights(ticket)
            self._newest = ticket
            loaded = time.perf_counter()
            bag.mean("sync/load_s", loaded - loading)
            if self.client.version != version:
                raise SyncError(f"engines serve {self.client.version}, expected {version}")
            await self.client.resume_all()
        except SyncError:
            raise
        except EngineError as error:
            raise SyncError(f"version {version} reached no engine: {error}") from error
        # From the last token of the slowest engine to stop; until then it was still sampling.
        resumed = time.perf_counter()
        bag.mean("sync/resume_s", resumed - loaded)
        bag.mean("sync/pause_s", resumed - loading)
        serving = len(self.client.active())
        bag.sum("sync/bytes", ticket.info.get("size_bytes", 0))
        bag.mean("sync/replicas", serving)
        bag.mean("sync/quarantined", len(self.client.names()) - serving)
        return bag

    async def catch_up(self, engine: Engine) -> None:
        """Give a quarantined engine the newest weights and resume it; the client's `recover`.

        Raises:
            EngineError: it is not well, or a streaming backend has nothing to give now.
        """
        health = await engine.health()
        ticket = self._newest
        if engine in self._members:
            # Its process may be a new one at the same address, which was never in the group.
            self._members = []
        current = ticket is None or health.version >= ticket.version
        if current and health.ready:
            await engine.resume()
            return
        if self._sender.streams:
            # The next sync repairs torn weights, too, if the engine can be paused for it.
            async with LoopTimeout(ANSWER_LIMIT_S):
                await engine.pause()
            self.client.waits_for_sync(engine.name)
        if ticket is None or current:
            raise EngineError(f"engine {engine.name} is not ready: {health.detail}")
        if self._sender.streams:
            raise SyncError(
                f"engine {engine.name} has version {health.version}, the others "
                f"{ticket.version}; it takes part in the next sync"
            )
        info = self._sender.connect(1)[0]
        await engine.pause()
        await engine.prepare_weights(self._sender.backend, info)
        await engine.load_weights(ticket)
        await engine.resume()

    async def close(self) -> None:
        """Release what the sender holds; engines catch up no more. Idempotent."""
        if self.client.recover == self.catch_up:
            self.client.recover = None
        await run_computing(self._sender.close)

    # -- streaming --------------------------------------------------------------------------

    async def _stream(self, weights: WeightsFactory, version: int) -> WeightTicket:
        """Send while all engines listen; in a new group without those that are lost."""
        returning = await self._answering()
        if any(self.client.engine(name) in self._members for name in returning):
            self._members = []  # as in `catch_up`, which may not have come to it yet
        last: BaseException | None = None
        done: WeightTicket | None = None
        for _ in range(ATTEMPTS):
            names = [n for n in [*self.client.active(), *returning] if self._lags(n, version)]
            if not names:
                break
            met = [self.client.engine(name) for name in names] == self._members
            gone = {} if met else await self._meet(names)
            failed: Mapping[str, BaseException] = {}
            if not gone:
                members = {name: self.client.engine(name) for name in names}
                sent = await broadcast(
                    self._sender, members, weights(), version, limit_s=self._limit_s
                )
                done, failed = sent.ticket or done, sent.failed
                # One lost in mid-broadcast takes healthy ones with it. Where it is not known who
                # it was, it is down, and will not meet the others.
                gone = {name: error for name, error in failed.items() if name in sent.culprits}
            if gone or failed:
                self._members = []
                last = next(iter((gone or failed).values()))
            for name, error in gone.items():
                if name in returning:
                    returning.remove(name)
                else:
                    self.client.quarantine(name, f"it failed to take weights: {error}")
        served = [*self.client.active(), *returning]
        if done is None or all(self._lags(name, version) for name in served):
            why = last or "none answers"
            raise SyncError(f"version {version} reached no engine: {why}") from last
        for name in self.client.active():
            if self._lags(name, version):
                self.client.quarantine(name, f"it missed version {version}: {last}")
        if not self.client.active():
            for name in returning:
                if not self._lags(name, version):
                    self.client.take_back(name)
        return done

    def _lags(self, name: str, version: int) -> bool:
        return self.client.engine(name).version < version

    async def _answering(self) -> list[str]:
        """Quarantined engines that can take part: those that can be paused."""

        async def pause(name: str) -> None:
            async with LoopTimeout(ANSWER_LIMIT_S):
                await self.client.engine(name).pause()

        out = [name for name in self.client.names() if name not in self.client.active()]
        results = await asyncio.gather(*map(pause, out), return_exceptions=True)
        return [name for name, result in zip(out, results, strict=True) if result is None]

    async def _meet(self, names: Sequence[str]) -> Mapping[str, BaseException]:
        """Introduce the sender to these engines; returns those that failed."""
        infos = await run_computing(self._sender.connect, len(names))
        backend = self._sender.backend
        engines = [self.client.engine(name) for name in names]
        work: list[Any] = [
            self._prepare(engine, backend, info)
            for engine, info in zip(engines, infos, strict=True)
        ]
        meet = getattr(self._sender, "meet", None)
        if meet is not None:
            work.append(run_computing(meet))
        results = await asyncio.gather(*work, return_exceptions=True)
        failed = {
            name: result
            for name, result in zip(names, results, strict=False)
            if isinstance(result, BaseException)
        }
        self._members = [] if failed else engines
        if not failed and isinstance(results[-1], BaseException):
            raise results[-1]
        return failed

    async def _prepare(self, engine: Engine, backend: str, info: Mapping[str, Any]) -> None:
        # The receiver itself may use up the limit, and says more about its reason.
        limit_s = self._limit_s + ANSWER_LIMIT_S
        try:
            async with LoopTimeout(limit_s):
                await engine.prepare_weights(backend, info)
        except TimeoutError:
            raise SyncError(
                f"it did not meet the sender of the weights within {limit_s:g} s"
            ) from None

    async def _wait_for_turns(self) -> None:
        balancer = self.client.balancer
        try:
            async with asyncio.timeout(self._drain_limit_s):
                while any(balancer.in_flight(name) for name in self.client.active()):
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise SyncError(
                f"turns were still in flight after {self._drain_limit_s:g} s; nothing was paused"
            ) from None


def _details(failed: Mapping[str, BaseException]) -> str:
    return "; ".join(f"{name}: {error}" for name, error in failed.items())
