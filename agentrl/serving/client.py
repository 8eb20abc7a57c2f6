"""`TokenClient`: the `Generator` that rollouts see, over one engine or many.

The balancer decides, the client only asks, awaits and gives back. A turn is repeated on another
engine only if the first one refused it before sampling; a turn that may have been sampled fails,
and the rollout with it, because a trajectory must hold what really was the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from agentrl.engine import Engine, EngineHealth, WeightTicket
from agentrl.errors import EngineError, EngineRefused, choices
from agentrl.serving.balancer import LoadBalancer
from agentrl.types import Generation, SamplingParams

logger = logging.getLogger(__name__)

FAILURES_TO_QUARANTINE = 3
"""Failed requests in a row after which an engine gets no more of them."""
PROBE_LIMIT_S = 10.0
"""Seconds an engine has to answer."""


class TokenClient:
    """Many engines as one.

    An engine is quarantined after three failed requests in a row, or after one if it says of
    itself that it is not ready, and comes back when it says that it is ready and has the version
    of the others. The last active engine is never quarantined: without it every request would
    fail, with it only those that do.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        balancer: LoadBalancer | None = None,
        *,
        probe_s: float = 1.0,
    ) -> None:
        """Take the engines.

        Args:
            engines: at least one, with unique names.
            balancer: must be empty; default a new one.
            probe_s: seconds before a quarantined engine is asked how it is; doubles each time, up
                to thirty times as much.

        Raises:
            ValueError: no engine, two of one name, or a balancer that has engines already.
        """
        if not engines:
            raise ValueError("TokenClient needs at least one engine")
        self.balancer = LoadBalancer() if balancer is None else balancer
        if len(self.balancer):
            raise ValueError("TokenClient adds its engines itself; give it an empty LoadBalancer")
        self._probe_s = probe_s
        self._engines: dict[str, Engine] = {}
        self._failures: dict[str, int] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}
        for engine in engines:
            self.balancer.add(engine.name)
            self._engines[engine.name] = engine
            self._failures[engine.name] = 0

    # -- Generator --------------------------------------------------------------------------

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session_id: str
    ) -> Generation:
        """See `Generator.generate`.

        Raises:
            EngineError: the engine of the session failed, or all engines refused.
        """
        refused: list[str] = []
        before = self.balancer.pinned(session_id)
        while True:
            name = self.balancer.acquire(session_id, avoid=refused)
            try:
                if before is not None and before != name:
                    await self._leave(before, session_id)
                    before = None
                generation = await self._engines[name].generate(prompt_ids, sampling, session_id)
            except EngineRefused:
                refused.append(name)
                if all(other in refused for other in self.balancer.active()):
                    raise
            except EngineError:
                await self._note_failure(name)
                raise
            else:
                self._failures[name] = 0
                return generation
            finally:
                self.balancer.release(name)

    async def end_session(self, session_id: str) -> None:
        """See `Generator.end_session`."""
        name = self.balancer.end_session(session_id)
        if name is not None:
            await self._engines[name].end_session(session_id)

    async def _leave(self, name: str, session_id: str) -> None:
        """Tell an engine that a session went elsewhere; it may be beyond hearing."""
        try:
            await self._engines[name].end_session(session_id)
        except EngineError as error:
            logger.info("engine %s did not end session %s: %s", name, session_id, error)

    # -- weights ----------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version all engines sample from.

        Raises:
            EngineError: they do not agree.
        """
        versions = {name: engine.version for name, engine in self._engines.items()}
        if len(set(versions.values())) != 1:
            raise EngineError(f"engines have different weight versions: {versions}")
        return next(iter(versions.values()))

    async def pause_all(self) -> None:
        """Stop every engine from producing tokens; returns once all have stopped."""
        await self._all("pause", lambda engine: engine.pause())

    async def resume_all(self) -> None:
        """Let every engine go on.

        Raises:
            EngineError: their versions do not agree; none was resumed.
        """
        _ = self.version
        await self._all("resume", lambda engine: engine.resume())

    async def load_weights(self, ticket: WeightTicket) -> None:
        """Give all engines new weights; call it between `pause_all` and `resume_all`.

        Raises:
            EngineError: an engine failed or ended up with another version.
        """
        await self._all("load_weights", lambda engine: engine.load_weights(ticket))
        if self.version != ticket.version:
            raise EngineError(
                f"engines were given version {ticket.version} but have {self.version}"
            )

    # -- care -------------------------------------------------------------------------------

    async def health(self) -> Mapping[str, EngineHealth]:
        """What each engine says of itself, by name."""
        names = list(self._engines)
        states = await asyncio.gather(*(self._ask(name) for name in names))
        return dict(zip(names, states, strict=True))

    def engine(self, name: str) -> Engine:
        """One engine.

        Raises:
            EngineError: there is none of that name.
        """
        if name not in self._engines:
            raise EngineError(f"unknown engine: {choices(name, self._engines)}")
        return self._engines[name]

    async def close(self) -> None:
        """Close every engine. Idempotent.

        Raises:
            EngineError: an engine could not be closed; the others are.
        """
        probes = list(self._probes.values())
        self._probes.clear()
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        await self._all("close", lambda engine: engine.close())

    async def _all(self, what: str, act: Callable[[Engine], Awaitable[None]]) -> None:
        """Act on every engine at once; all are awaited even if one fails."""
        engines = list(self._engines.values())
        results = await asyncio.gather(*(act(e) for e in engines), return_exceptions=True)
        failed = {
            engine.name: result
            for engine, result in zip(engines, results, strict=True)
            if isinstance(result, BaseException)
        }
        if failed:
            details = "; ".join(f"{name}: {error!r}" for name, error in failed.items())
            raise EngineError(f"{what} failed on {details}") from next(iter(failed.values()))

    async def _ask(self, name: str) -> EngineHealth:
        engine = self._engines[name]
        try:
            async with asyncio.timeout(PROBE_LIMIT_S):
                return await engine.health()
        except (EngineError, TimeoutError) as error:
            return EngineHealth(ready=False, version=-1, in_flight=0, detail=repr(error))

    async def _note_failure(self, name: str) -> None:
        self._failures[name] += 1
        if self._failures[name] < FAILURES_TO_QUARANTINE:
            health = await self._ask(name)
            if health.ready:
                return
        if name in self._probes or self.balancer.active() in ([], [name]):
            return
        logger.warning("engine %s is quarantined after %d failures", name, self._failures[name])
        self.balancer.quarantine(name)
        self._probes[name] = asyncio.create_task(self._probe(name))

    async def _probe(self, name: str) -> None:
        """Ask a quarantined engine until it is well; ends with `close`."""
        wait_s = self._probe_s
        while True:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, 30 * self._probe_s)
            health = await self._ask(name)
            others = {self._engines[other].version for other in self.balancer.active()}
            if health.ready and others <= {health.version}:
                break
        logger.warning("engine %s is ready again", name)
        self._failures[name] = 0
        self._probes.pop(name, None)
        self.balancer.restore(name)
