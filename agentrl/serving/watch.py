"""Finds engines that hold requests and produce nothing, although they report that they are well.

    in flight, and for `stuck_after_s` no turn ended and no counter moved
        --> ask for one token, with as long again --none--> quarantine: turns go to other engines

The HTTP front of a vLLM server answers `/health` while its engine core is stopped. Two things show
a core that works: turns that end, and the numbers of its metrics, one of which moves with every
step. While vLLM computes a long prompt in pieces no counter of tokens or steps moves, but each
piece takes blocks of the cache. Asking for a token is the last question and not the first, because
on a full server it queues behind everything else. A fleet that is paused produces nothing, so time
does not count then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from agentrl.errors import EngineError
from agentrl.serving.client import TokenClient
from agentrl.serving.loop_timeout import LoopTimeout
from agentrl.serving.member import Member
from agentrl.serving.records import EngineState, EngineStats

logger = logging.getLogger(__name__)

STUCK_AFTER_S = 60.0
"""Seconds in which a server with turns in flight may produce nothing; then it is asked for one
token, and without one after as long again its turns go to other servers."""
LOOK_S = 1.0
"""Seconds between two looks, or less where the limit is short."""
OUTAGE_NOTE_S = 60.0
"""Seconds between two lines about the same outage."""
SIGNS = ("generated_tokens", "prompt_tokens", "steps", "kv_cache_usage")
"""Numbers of `EngineHealth.metrics` that only an engine core that works moves."""


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What is known of one engine since it last showed that it works."""

    member: Member
    """The engine; another one of the same name is observed from its own beginning."""
    since: float
    """When it did, in the time of the loop."""
    answered: int
    """Turns that had come back, failures included."""
    counters: tuple[float, ...] = ()
    """The `SIGNS` when they were last read; empty before."""
    question: asyncio.Task[None] | None = field(default=None)
    """Asks the engine itself."""


class EngineWatch:
    """Watches the active engines of a client until it is cancelled."""

    def __init__(
        self,
        client: TokenClient,
        *,
        stuck_after_s: float | None = None,
        note: Callable[[str], None],
        outage_limit_s: float,
        stats: Callable[[], Mapping[str, EngineStats]] | None = None,
    ) -> None:
        """Take the engines.

        Args:
            client: quarantines them.
            stuck_after_s: seconds without a sign of work, and seconds to sample one token then;
                None takes `STUCK_AFTER_S`.
            note: called with what the user should read.
            outage_limit_s: seconds without any engine after which the run ends, for messages.
            stats: requests in flight and answers of all clients of the engines; default
                `client.all_stats`.
        """
        self._client = client
        self._limit_s = STUCK_AFTER_S if stuck_after_s is None else stuck_after_s
        self._note = note
        self._stats = stats or client.all_stats
        self._seen: dict[str, _Seen] = {}
        self._outage_limit_s = outage_limit_s
        self._outage_began: float | None = None
        self._outage_told = 0.0

    async def run(self) -> None:
        """Look again and again."""
        try:
            while True:
                await asyncio.sleep(min(LOOK_S, self._limit_s / 10))
                self.look()
        finally:
            asked = [seen.question for seen in self._seen.values() if seen.question is not None]
            self._forget(self._seen)
            await asyncio.gather(*asked, return_exceptions=True)

    def look(self) -> None:
        """Note which engines have worked since the last call, and question those that have not."""
        if self._client.paused:
            self._forget(list(self._seen))
            return
        now = asyncio.get_running_loop().time()
        self._note_outage(now)
        stats = self._stats()
        active = {n: s for n, s in stats.items() if s.state is EngineState.ACTIVE and s.in_flight}
        self._forget([name for name in self._seen if name not in active])
        for name, engine in active.items():
            served = engine.served
            answered = served.turns + served.failures + served.refusals
            member, seen = self._client.member(name), self._seen.get(name)
            if seen is None or seen.answered != answered or seen.member is not member:
                self._forget([name])
                self._seen[name] = _Seen(member=member, since=now, answered=answered)
            elif now - seen.since > self._limit_s / 2 and (
                seen.question is None or seen.question.done()
            ):
                seen.question = asyncio.create_task(self._question(name, seen))

    def _note_outage(self, now: float) -> None:
        """Log that no engine serves, once a minute, and that one does again."""
        if self._client.active():
            if self._outage_began is not None and self._outage_told:
                self._note(f"engines serve again after {now - self._outage_began:.0f} s")
            self._outage_began, self._outage_told = None, 0.0
            return
        if self._outage_began is None:
            self._outage_began = now
            return  # one that has just failed may be back at the next look
        if not self._outage_told or now - self._outage_told >= OUTAGE_NOTE_S:
            self._outage_told = now
            self._note(
                f"no engine serves since {now - self._outage_began:.0f} s; turns wait, and the "
                f"run ends after {self._outage_limit_s:g} s (serving.outage_limit_s): "
                f"{self._client.states()}"
            )

    async def _question(self, name: str, seen: _Seen) -> None:
        """Compare counters until one moves; at the limit, ask for a token."""
        loop = asyncio.get_running_loop()
        while loop.time() - seen.since < self._limit_s:
            if await self._moved(name, seen):
                return
            await asyncio.sleep(min(LOOK_S, self._limit_s / 10))
        quiet_s = loop.time() - seen.since
        try:
            await seen.member.sample_one(self._limit_s)
        except EngineError as error:
            if await self._moved(name, seen):
                return
            self._take_out(
                name,
                f"it has turns in flight, but none ended and no token came for {quiet_s:.0f} s; "
                f"asked for one: {error}",
            )
            return
        self._forget([name])

    async def _moved(self, name: str, seen: _Seen) -> bool:
        """Read the counters; if one has moved, the engine is forgotten until it is quiet again.

        So it is while this machine cannot ask it: its turns and the question then wait here.
        """
        try:
            async with LoopTimeout(self._limit_s):
                health = await seen.member.health()
        except TimeoutError:
            return False
        metrics = health.metrics or {}
        counters = tuple(metrics[sign] for sign in SIGNS if sign in metrics)
        moved = counters and seen.counters and counters != seen.counters
        if moved or not health.asked:
            self._forget([name])
            return True
        seen.counters = counters or seen.counters
        return False

    def _take_out(self, name: str, why: str) -> None:
        if name not in self._client.active():
            return  # something else was faster
        self._client.quarantine(name, f"it is stuck: {why}", stuck=True)
        self._note(f"{name} is stuck, its turns go to other engines: {why}")

    def _forget(self, names: Iterable[str]) -> None:
        """Observe these engines from the beginning again."""
        for name in list(names):
            seen = self._seen.pop(name, None)
            if seen is None or seen.question is None:
                continue
            if seen.question is not asyncio.current_task():
                seen.question.cancel()
