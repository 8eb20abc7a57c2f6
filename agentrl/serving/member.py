"""`Member`: one engine of a fleet with what is in flight there and what is known of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, field

from agentrl.engine import Engine, EngineHealth
from agentrl.errors import EngineError
from agentrl.serving.loop_timeout import LoopTimeout
from agentrl.serving.records import Served
from agentrl.types import Generation, ImageSpan, SamplingParams

logger = logging.getLogger(__name__)

ANSWER_LIMIT_S = 10.0
"""Seconds an engine has to answer a question that is not a generation."""
WATCH_SESSION = "agentrl-watch"
"""Session of the turns that only ask whether an engine works."""


class TakenAway(EngineError):
    """The engine was quarantined, replaced or removed while it worked on this turn."""

    planned = False
    """It did not fail but left the run as it was asked to, so the turn is not lost with it."""


@dataclass(slots=True, eq=False)
class Member:
    """One engine. Lives in one event loop."""

    engine: Engine
    """The engine behind the member."""
    served: Served = field(default_factory=Served)
    """Counts of its work."""
    failures_in_row: int = 0
    """Failed requests since the last that did not."""
    why: str = ""
    """Reason of the quarantine."""
    leaves: bool = False
    """It is well and leaves the run: what is taken away from it then is not lost with it."""
    stuck: bool = False
    """It held requests and produced nothing; it must sample a token before it serves again."""
    probe: asyncio.Task[None] | None = None
    """Brings it back out of quarantine."""
    staging: asyncio.Task[None] | None = None
    """Stages new weights beside those it samples with; ends when it serves no more."""
    _running: set[asyncio.Timeout] = field(default_factory=set)
    _emptied: asyncio.Event = field(default_factory=asyncio.Event)
    _check: asyncio.Task[EngineHealth] | None = None

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """Sample one turn, and count it.

        Raises:
            TakenAway: `evict` was called meanwhile.
            EngineError: from the engine.
        """
        prompt_tokens = len(prompt_ids)
        # A scope without a limit costs nothing, and can be given one from outside: the request is
        # then cancelled as for a time limit, while a cancellation of the rollout stays one.
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._running.add(scope)
                asked = self.engine.generate
                generation = await (
                    asked(prompt_ids, sampling, session_id, images)
                    if images
                    else asked(prompt_ids, sampling, session_id)
                )
        except TimeoutError:
            if scope.expired():
                why = self.why or "replaced or removed"
                error = TakenAway(f"engine {self.engine.name} was taken away: {why}")
                error.planned = self.leaves
                raise error from None
            raise
        finally:
            self._running.discard(scope)
            if not self._running:
                self._emptied.set()
        self.failures_in_row = 0
        self.served.turns += 1
        self.served.prompt_tokens += prompt_tokens
        self.served.cached_tokens += generation.cached_tokens
        self.served.generated_tokens += len(generation.ids)
        return generation

    def evict(self) -> None:
        """Take away everything in flight."""
        now = asyncio.get_running_loop().time()
        for scope in self._running:
            if not scope.expired():
                scope.reschedule(now)

    async def empty(self, *, limit_s: float) -> bool:
        """Wait until nothing is in flight; False if something still is after the limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._running:
                    self._emptied.clear()
                    await self._emptied.wait()
        return not self._running

    async def end_session(self, session_id: str) -> None:
        """As `Engine.end_session`; an engine beyond hearing is not an error."""
        try:
            async with LoopTimeout(ANSWER_LIMIT_S):
                await self.engine.end_session(session_id)
        except (EngineError, TimeoutError) as error:
            logger.info("engine %s did not end session %s: %r", self.engine.name, session_id, error)

    async def close(self) -> None:
        """As `Engine.close`, for an engine that is gone anyway."""
        try:
            await self.engine.close()
        except EngineError as error:
            logger.info("engine %s could not be closed: %s", self.engine.name, error)

    async def health(self) -> EngineHealth:
        """As `Engine.health`, within a limit; calls while one is in flight share its
        answer, so that a failing engine is not asked by every request that it failed."""
        if self._check is None or self._check.done():
            # For all that ask: the clock of the turn that asks first must not be held for it.
            self._check = asyncio.create_task(self._ask(), context=Context())
        check = self._check
        try:
            return await asyncio.shield(check)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if check.cancelled() and not (task and task.cancelling()):
                return _down("closing")
            raise

    async def sample_one(self, limit_s: float) -> None:
        """Sample a turn of one token, which nobody reads: proof that the engine works.

        Args:
            limit_s: seconds until the token must be there.

        Raises:
            EngineError: the engine failed, or did not answer in time.
        """
        try:
            async with LoopTimeout(limit_s):
                await self.engine.generate((0,), SamplingParams(max_tokens=1), WATCH_SESSION)
                await self.engine.end_session(WATCH_SESSION)
        except TimeoutError:
            raise EngineError(
                f"engine {self.engine.name} sampled no token within {limit_s:g} s"
            ) from None

    def stop(self) -> list[asyncio.Task[None] | asyncio.Task[EngineHealth]]:
        """Ask no more; the cancelled tasks."""
        tasks = [task for task in (self.probe, self.staging, self._check) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    async def _ask(self) -> EngineHealth:
        try:
            async with LoopTimeout(ANSWER_LIMIT_S):
                return await self.engine.health()
        except (EngineError, TimeoutError) as error:
            return _down(repr(error))


def _down(detail: str) -> EngineHealth:
    return EngineHealth(ready=False, version=-1, in_flight=0, detail=detail)
