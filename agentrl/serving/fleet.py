"""`Fleet`: which engines there are, which of them serve, and how the others come back.

    join --(same weights)--> ACTIVE        join --(other weights)--> QUARANTINED
    ACTIVE --failures, or `quarantine`--> QUARANTINED --well, and has the weights--> ACTIVE
    ACTIVE --`drain`--> DRAINING --`restore`--> ACTIVE
    any --`remove_engine`--> closed once nothing is in flight

Invariants:

- An engine comes back only with the weights of those that serve, and never while the fleet is
  paused; the check and the return are one step without an `await` between them.
- Explicit quarantine always takes effect, because its caller knows that the weights are
  wrong. What is in flight there is taken away and asked of another engine.
- Three failures in a row quarantine an engine that says it is well, unless it is the last one:
  without it every request would fail, with it only those that do. An engine that is down is
  quarantined even as the last one: requests then wait for it instead of failing at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from typing import Any

from agentrl.engine import Engine, EngineHealth
from agentrl.errors import EngineError, NoEngine, WakeFailed, choices
from agentrl.serving.balancer import LoadBalancer
from agentrl.serving.loop_timeout import LoopTimeout
from agentrl.serving.member import ANSWER_LIMIT_S, Member
from agentrl.serving.records import EngineState, EngineStats, Served, total
from agentrl.serving.turn_clocks import TurnClocks

logger = logging.getLogger(__name__)

_MOST_NAMED = 8
"""Engines that a message names."""

FAILURES_TO_QUARANTINE = 3
"""Failed requests in a row after which an engine gets no more of them."""
RECOVER_LIMIT_S = 600.0
"""Seconds an engine has to take the newest weights."""

Recover = Callable[[Engine], Awaitable[None]]
"""Gives an engine the newest weights and leaves it running; raises `EngineError` if it cannot."""

Counted = Callable[[Mapping[str, EngineStats]], Mapping[str, EngineStats]]
"""Adds to records of engines what other clients have asked of them."""


class Fleet:
    """Engines that come, fail, recover and go. Everything happens in one event loop."""

    recover: Recover | None
    """Awaited before an engine serves that is not known to have the weights of the others, and may
    be set at any time; without it such an engine waits until it has them."""

    def __init__(
        self,
        engines: Sequence[Engine],
        balancer: LoadBalancer | None = None,
        *,
        probe_s: float = 1.0,
        recover: Recover | None = None,
        answer_limit_s: float = ANSWER_LIMIT_S,
    ) -> None:
        """Take the engines.

        Args:
            engines: at least one, with unique names.
            balancer: must be empty; default a new one.
            probe_s: seconds before a quarantined engine is asked how it is; doubles each time, up
                to thirty times as much.
            recover: see the attribute.
            answer_limit_s: seconds an engine that was stuck has to sample one token before it
                serves again.

        Raises:
            ValueError: no engine, two of one name, or a balancer that has engines already.
        """
        if not engines:
            raise ValueError(f"{type(self).__name__} needs at least one engine")
        self.balancer = LoadBalancer() if balancer is None else balancer
        if len(self.balancer):
            raise ValueError(
                f"{type(self).__name__} adds its engines itself; give it an empty LoadBalancer"
            )
        self.recover = recover
        self.counted: Counted | None = None
        """Set where turns go through other clients, as those of workers in other processes."""
        self.quarantines = 0
        """Times an engine was quarantined."""
        self._probe_s = probe_s
        self._answer_limit_s = answer_limit_s
        self._members: dict[str, Member] = {}
        self._gone = Served()
        self._newest = self._served = max(engine.version for engine in engines)
        self._waiting: set[str] = set()
        self._outage_began = 0.0
        """When a turn first waited for an engine that serves, in the time of the loop; 0 while one
        does."""
        self._paused = False
        self._clocks = TurnClocks()
        self._closed = False
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        for engine in engines:
            self.balancer.add(engine.name)
            self._members[engine.name] = Member(engine)

    # -- questions --------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All engines but those being removed, whatever their state."""
        return [n for n in self._members if self._state(n) is not EngineState.REMOVED]

    def active(self) -> list[str]:
        """Engines that take requests."""
        return self.balancer.active()

    @property
    def paused(self) -> bool:
        """No engine produces tokens, because weights are being changed."""
        return self._paused

    def is_stuck(self, name: str) -> bool:
        """True for an engine that `quarantine` took out as stuck, until it samples again."""
        return self._member(name).stuck

    def states(self) -> str:
        """The first engines with state and reason of a quarantine, for messages."""
        if not self._members:
            return "there is none"
        named = [
            f"{name} ({self._state(name)}{': ' + member.why if member.why else ''})"
            for name, member in itertools.islice(self._members.items(), _MOST_NAMED)
        ]
        if more := len(self._members) - len(named):
            named.append(f"and {more} more")
        return ", ".join(named)

    def member(self, name: str) -> Member:
        """The engine of this name with what is in flight there.

        Raises:
            EngineError: there is none of that name.
        """
        return self._member(name)

    def engine(self, name: str) -> Engine:
        """The engine of this name.

        Raises:
            EngineError: there is none of that name.
        """
        return self._member(name).engine

    async def health(self) -> Mapping[str, EngineHealth]:
        """Ask every engine for its health, by name."""
        names = self.names()
        states = await asyncio.gather(*(self._members[name].health() for name in names))
        return dict(zip(names, states, strict=True))

    def stats(self) -> Mapping[str, EngineStats]:
        """Counts and state of every engine by name, without asking the engines."""
        return {
            name: EngineStats(
                name=name,
                state=self.balancer.state(name),
                why=member.why,
                version=member.engine.version,
                in_flight=self.balancer.in_flight(name),
                sessions=self.balancer.sessions(name),
                routed=self.balancer.routed(name),
                served=replace(member.served),
            )
            for name in self.names()
            for member in [self._members[name]]
        }

    def all_stats(self) -> Mapping[str, EngineStats]:
        """As `stats`, with what other clients of the same engines have asked of them."""
        own = self.stats()
        return own if self.counted is None else self.counted(own)

    # -- coming and going -------------------------------------------------------------------

    def add_engine(self, engine: Engine) -> None:
        """Take another engine; it serves as soon as it has the weights of those that do.

        Raises:
            EngineError: there is one of that name, or it is still being removed.
        """
        if engine.name in self._members:
            raise EngineError(
                f"engine {engine.name!r} is there already ({self._state(engine.name)}); "
                "engine names must be unique"
            )
        self.balancer.add(engine.name)
        self._members[engine.name] = Member(engine)
        self._join(engine.name)

    def replace(self, name: str, engine: Engine) -> None:
        """Replace an engine that is gone, which is closed, with its restarted one.

        Raises:
            EngineError: there is none of that name, or the new one is called otherwise.
        """
        old = self._member(name)
        if engine.name != name:
            raise EngineError(f"engine {name!r} cannot be replaced by one named {engine.name!r}")
        _cancel(old.probe)
        _cancel(old.staging)
        old.evict()
        self._newest = max(self._newest, old.engine.version)
        self._members[name] = Member(engine, served=old.served)
        self.balancer.forget_sessions(name)
        self._spawn(old.close())
        self._join(name)

    async def remove_engine(self, name: str, *, limit_s: float = 60.0) -> None:
        """Give an engine no more requests, wait for those it has, close and forget it.

        Args:
            name: of the engine.
            limit_s: seconds to wait; what is in flight after that is asked of another engine.

        Raises:
            EngineError: there is none of that name, or it could not be closed; it is forgotten.
        """
        member = self._member(name)
        self.balancer.remove(name)
        _cancel(member.probe)
        _cancel(member.staging)
        try:
            if not await member.empty(limit_s=limit_s):
                logger.warning("engine %s did not end its turns in %g s; others do", name, limit_s)
                member.evict()
                await member.empty(limit_s=ANSWER_LIMIT_S)
        finally:
            self._newest = max(self._newest, member.engine.version)
            self._gone = total(self._gone, member.served)
            del self._members[name]
        await member.engine.close()

    def drain(self, name: str) -> None:
        """Give an engine no more requests; it finishes what it has. `restore` ends it.

        Raises:
            EngineError: there is none of that name, or it is quarantined.
        """
        self._expect(name, EngineState.ACTIVE, EngineState.DRAINING)
        self.balancer.drain(name)

    def restore(self, name: str) -> None:
        """Give a drained engine requests again; a quarantined one comes back by itself.

        Raises:
            EngineError: there is none of that name, or it is quarantined.
        """
        self._expect(name, EngineState.ACTIVE, EngineState.DRAINING)
        if self._agrees(name, self._members[name].engine.version):
            self._serve(name)
        else:
            self._set_aside(name, "it missed weights while it was drained", wait_s=0.0)

    def quarantine(self, name: str, why: str, *, stuck: bool = False) -> None:
        """Take an engine out at once, with what is in flight there, even if it is the last.

        It comes back by itself, after `recover`.

        Args:
            name: of the engine.
            why: for messages.
            stuck: it holds requests and produces nothing, whatever its health says; it comes back
                only after it has sampled a token.

        Raises:
            EngineError: there is none of that name.
        """
        member = self._member(name)
        member.stuck = member.stuck or stuck
        self._set_aside(name, why, wait_s=self._probe_s)
        member.evict()

    async def start_over(self, why: str, *, limit_s: float) -> None:
        """After a change that no engine took: take all of them out, and wait for one to return.

        One that `waits_for_sync` is as good: it can only return with the next change.

        Args:
            why: they are taken out.
            limit_s: seconds to wait, restarts included.

        Raises:
            NoEngine: none came back in time.
        """
        self._set_paused(False)
        self._waiting.clear()
        for name in self.names():
            self.quarantine(name, why)
        try:
            async with asyncio.timeout(limit_s):
                while not (self.active() or self._waiting or self._closed):
                    await self._changed.wait()
        except TimeoutError:
            raise NoEngine(f"no engine came back within {limit_s:g} s: {why}") from None

    def waits_for_sync(self, name: str) -> None:
        """Record that a quarantined engine answers, and gets weights only with the next sync."""
        self._waiting.add(name)
        self._notify()

    def take_back(self, name: str) -> None:
        """Serve again from a quarantined engine whose weights were loaded for it alone.

        Raises:
            EngineError: there is none of that name.
        """
        member = self._member(name)
        if self._state(name) is EngineState.QUARANTINED:
            _cancel(member.probe)
            member.failures_in_row, member.why, member.stuck = 0, "", False
            self._serve(name)

    def hold_turns(self, held: bool) -> None:
        """Stop the clocks of all turns, or start them again: the engines are paused by others.

        A fleet that pauses its engines itself does this with the pause. Idempotent.
        """
        if held:
            self._clocks.stop()
        else:
            self._clocks.go_on()

    # -- inside -----------------------------------------------------------------------------

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused
        self.hold_turns(paused)

    def _serve(self, name: str) -> None:
        """From now on it takes requests."""
        self._waiting.discard(name)
        self._outage_began = 0.0
        self._served = self._members[name].engine.version
        self.balancer.restore(name)
        self._notify()

    def _state(self, name: str) -> EngineState:
        try:
            return self.balancer.state(name)
        except ValueError:
            return EngineState.REMOVED

    def _member(self, name: str) -> Member:
        names = self.names()
        if name not in names:
            raise EngineError(f"unknown engine: {choices(name, names)}")
        return self._members[name]

    def _expect(self, name: str, *states: EngineState) -> None:
        member = self._member(name)
        if (state := self._state(name)) not in states:
            why = f" ({member.why})" if member.why else ""
            raise EngineError(f"engine {name!r} is {state}{why}, expected {' or '.join(states)}")

    def _notify(self) -> None:
        """Wake the waits for an engine."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until_active(self, limit_s: float) -> None:
        """Return once an engine takes requests.

        Args:
            limit_s: seconds since a turn first waited for one; a turn that comes later waits less.

        Raises:
            TimeoutError: none did in time.
        """
        now = asyncio.get_running_loop().time()
        began = self._outage_began = self._outage_began or now
        while not self.active() and not self._closed:
            async with asyncio.timeout_at(began + limit_s):
                await self._changed.wait()

    def _agrees(self, name: str, version: int) -> bool:
        """Whether these are the weights of the others that serve; if none does, the newest."""
        others = {self._members[n].engine.version for n in self.active() if n != name}
        self._newest = max(self._newest, *(m.engine.version for m in self._members.values()))
        return others == {version} if others else version == self._newest

    def _join(self, name: str) -> None:
        version = self._members[name].engine.version
        if self._agrees(name, version) and not self._paused:
            self._serve(name)
        else:
            self._set_aside(name, f"it joins with weights of version {version}", wait_s=0.0)

    def _set_aside(self, name: str, why: str, *, wait_s: float) -> None:
        member = self._member(name)
        if self._state(name) is not EngineState.QUARANTINED:
            self.quarantines += 1
            self.balancer.quarantine(name)
        logger.warning("engine %s is quarantined: %s", name, why)
        member.why = why
        _cancel(member.staging)
        if not self._closed and (member.probe is None or member.probe.done()):
            probe = self._probe(name, member, wait_s)
            member.probe = asyncio.create_task(probe, context=Context())

    async def _probe(self, name: str, member: Member, wait_s: float) -> None:
        """Try to bring a quarantined engine back until it is; cancelled when it leaves."""
        while True:
            await asyncio.sleep(wait_s)
            wait_s = min(max(2 * wait_s, self._probe_s), 30 * self._probe_s)
            try:
                if await self._try_to_return(name, member):
                    return
            except Exception as error:  # recording boundary: the hook is the runtime's code
                known = isinstance(error, EngineError | TimeoutError)
                member.stuck |= isinstance(error, WakeFailed)
                logger.warning("engine %s stays out: %r", name, error, exc_info=not known)

    async def _try_to_return(self, name: str, member: Member) -> bool:
        if self._paused:
            return False
        if member.stuck:
            await self._wake(member)
        if self.recover is not None:
            async with LoopTimeout(RECOVER_LIMIT_S):
                await self.recover(member.engine)
        if member.stuck:
            await member.sample_one(self._answer_limit_s)
            member.stuck = False
        health = await member.health()
        # No await from here on: what is compared is still true when the engine takes requests.
        if self._paused or not health.ready or not self._agrees(name, health.version):
            return False
        logger.warning("engine %s serves again, with weights %d", name, health.version)
        member.failures_in_row, member.why = 0, ""
        self._serve(name)
        return True

    async def _wake(self, member: Member) -> None:
        """Resume an engine that may have got stuck while it was paused.

        Raises:
            TimeoutError: its core does not answer, whatever its HTTP front says of its health.
        """
        try:
            async with LoopTimeout(self._answer_limit_s):
                await member.engine.resume()
        except EngineError as error:  # torn weights, say: `recover` brings others
            logger.info("engine %s does not resume: %s", member.engine.name, error)

    async def _is_down(self, name: str, member: Member) -> bool:
        """Ask an engine that did not serve a request how it is; one that is down is set aside."""
        health = await member.health()
        if health.ready or not health.asked:
            return False
        if self._members.get(name) is member and self._state(name) is EngineState.ACTIVE:
            self._set_aside(name, health.detail or "it is not ready", wait_s=self._probe_s)
        return True

    async def _look_at(self, name: str, member: Member) -> None:
        await self._is_down(name, member)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something in the background, on the clock of no turn; `close` ends it."""
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _stop_tasks(self) -> None:
        """Nothing comes back any more."""
        self._closed = True
        self._notify()
        tasks: list[asyncio.Task[Any]] = [*self._tasks]
        for task in tasks:
            task.cancel()
        for member in self._members.values():
            tasks += member.stop()
        await asyncio.gather(*tasks, return_exceptions=True)


def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
