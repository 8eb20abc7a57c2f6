"""`TokenClient`: the `Generator` that rollouts see, over one engine or many.

The balancer decides, the client only asks, awaits and releases. What happens to a turn whose
engine did not answer depends on what is known about it:

- refused: nothing was sampled, so another engine is asked;
- lost with its engine, which is down or was quarantined: another engine is asked, once, and the
  turn is counted as resampled. Nothing of the lost sample is known here, so nothing of it can enter
  the trajectory, and it went because its engine did, not because of what it said: drawing again,
  with the same seed, draws from the same distribution. A loss that does depend on the content (a
  turn that kills its server) would bias this, so the second loss of a turn is final. An engine that
  leaves the run because it was asked to is no such loss, however often it happens;
- failed on an engine that is well: it may have been sampled, and failed for a reason that may have
  to do with the sample (too long, not finite). Asking again until an answer is acceptable would
  select; the turn fails, and the rollout with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from agentrl.engine import Engine, WeightTicket, turn_held
from agentrl.errors import EngineError, EngineRefused, NoEngine, WakeFailed
from agentrl.serving.balancer import LoadBalancer
from agentrl.serving.fleet import FAILURES_TO_QUARANTINE, RECOVER_LIMIT_S, Fleet, Recover
from agentrl.serving.loop_timeout import LoopTimeout
from agentrl.serving.member import Member, TakenAway
from agentrl.serving.records import EngineState, Routed, Served, total
from agentrl.types import Generation, ImageSpan, SamplingParams

logger = logging.getLogger(__name__)

STAGE_LIMIT_S = 600.0
"""Seconds that a sync waits for engines to take weights beside those they sample with."""
PAUSE_LIMIT_S = 600.0
"""Seconds to pause or resume for engines that set no limit of their own."""
LOAD_LIMIT_S = RECOVER_LIMIT_S
"""Seconds to take new weights while paused: as long as an engine has that catches up by itself."""
Act = Callable[[Engine], Awaitable[None]]


class Silent(EngineError):
    """An engine did not answer a change of its state within the limit: it is stuck."""


@dataclass(frozen=True, slots=True)
class _Prefix:
    """What the engine of a session holds in its cache after the last turn."""

    tokens: int
    """Prompt and generation."""
    version: int
    """The weights the cache was computed with; worth nothing under others."""
    engine: str
    """Name of the engine."""

    @property
    def place(self) -> tuple[str, int]:
        """Engine and weights; the cache is of use only there and with them."""
        return self.engine, self.version


class TokenClient(Fleet):
    """Many engines as one. See `Fleet` for how engines come and go."""

    def __init__(
        self,
        engines: Sequence[Engine],
        balancer: LoadBalancer | None = None,
        *,
        probe_s: float = 1.0,
        recover: Recover | None = None,
        wait_s: float = 60.0,
        pause_limit_s: float = PAUSE_LIMIT_S,
        load_limit_s: float = LOAD_LIMIT_S,
    ) -> None:
        """Take the engines.

        Args:
            engines: at least one, with unique names.
            balancer: must be empty; default a new one.
            probe_s: as `Fleet`.
            recover: as `Fleet`.
            wait_s: seconds without any engine that takes requests until turns fail instead of
                waiting for one; 0 fails at once, for engines that do not come back.
            pause_limit_s: seconds an engine has to pause or to resume; one that takes longer is
                stuck.
            load_limit_s: likewise to take new weights while it is paused.

        Raises:
            ValueError: no engine, two of one name, or a balancer that has engines already.
        """
        super().__init__(
            engines, balancer, probe_s=probe_s, recover=recover, answer_limit_s=pause_limit_s
        )
        self.turns_resampled = 0
        """Turns that were lost with their engine and asked of another."""
        self._wait_s = wait_s
        self._pause_limit_s = pause_limit_s
        self._load_limit_s = load_limit_s
        self._prefixes: dict[str, _Prefix] = {}
        self._goodbyes: dict[tuple[str, str], asyncio.Task[None]] = {}

    # -- Generator --------------------------------------------------------------------------

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """See `Generator.generate`; the module lists which failures are tried again.

        Raises:
            EngineRefused: all engines turned it away, or the client is closed.
            NoEngine: none takes requests, and none did in time.
            EngineError: the engine of the session failed.
        """
        with self._clocks.turn():
            return await self._generate(prompt_ids, sampling, session_id, images)

    async def _generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan],
    ) -> Generation:
        refused: list[str] = []
        lost = False
        while True:
            if not self.active():
                with turn_held():
                    await self._wait_for_engine()
            if all(name in refused for name in self.active()):
                # The others have left since they were asked; who refused may have room by now.
                refused.clear()
            name, member = self._seat(session_id, len(prompt_ids), refused)
            try:
                return await self._ask_turn(name, member, prompt_ids, sampling, session_id, images)
            except EngineRefused:
                refused.append(name)
                member.served.refusals += 1
                if any(other not in refused for other in self.active()):
                    self._spawn(self._look_at(name, member))
                elif not await self._all_down(refused):
                    raise
                else:
                    refused.clear()
            except EngineError as error:
                member.served.failures += 1
                taken = isinstance(error, TakenAway)
                if not taken and not await self._note_failure(name, member, error):
                    raise
                planned = isinstance(error, TakenAway) and error.planned
                if self._closed or (lost and not planned):
                    raise
                lost = lost or not planned
                self.turns_resampled += 1
                logger.warning(
                    "session %s: a turn was lost with engine %s and is asked of another: %s",
                    session_id,
                    name,
                    error,
                )

    def engine_of(self, session_id: str) -> str | None:
        """Name of the engine that has a session; None if none has it yet."""
        return self.balancer.pinned(session_id)

    async def end_session(self, session_id: str) -> None:
        """See `Generator.end_session`; an engine beyond hearing is not an error."""
        self._prefixes.pop(session_id, None)
        name = self.balancer.end_session(session_id)
        if name is not None and name in self._members:
            await self._members[name].end_session(session_id)

    def _seat(self, session_id: str, prompt: int, refused: list[str]) -> tuple[str, Member]:
        """Choose an engine and count the turn there; `_ask_turn` releases it."""
        before = self.balancer.pinned(session_id)
        known = self._prefixes.get(session_id)
        prefix = prompt
        if known is not None and before is not None and before in self._members:
            same = self._members[before].engine.version == known.version
            prefix = min(known.tokens, prompt) if same else 0
        name = self.balancer.acquire(session_id, prefix_tokens=prefix, avoid=refused)
        if before not in (None, name) and before in self._members:
            # Not awaited: the engine may be slow, or unreachable.
            goodbye = self._spawn(self._members[before].end_session(session_id))
            self._goodbyes[before, session_id] = goodbye
            goodbye.add_done_callback(lambda _: self._goodbyes.pop((before, session_id), None))
        return name, self._members[name]

    async def _ask_turn(
        self,
        name: str,
        member: Member,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan],
    ) -> Generation:
        try:
            if (goodbye := self._goodbyes.get((name, session_id))) is not None:
                # The session is back before its end arrived, and must not end later.
                await asyncio.wait([goodbye])
            version = member.engine.version
            generation = await member.generate(prompt_ids, sampling, session_id, images)
        finally:
            self.balancer.release(name)
        tokens = len(prompt_ids) + len(generation.ids)
        held = self._prefixes.pop(session_id, None)
        now = _Prefix(tokens, member.engine.version, name)
        if held is not None and held.place == (name, version) == now.place:
            prefix = min(held.tokens, len(prompt_ids))
            if member.engine.reports_cached or member.served.cached_tokens:
                member.served.count_prefix(prefix, generation.cached_tokens)
        self._prefixes[session_id] = now
        if len(self._prefixes) > self.balancer.max_sessions:
            del self._prefixes[next(iter(self._prefixes))]
        return generation

    async def _wait_for_engine(self) -> None:
        if self._closed:
            raise EngineRefused("the client is closed")
        try:
            await self._until_active(self._wait_s)
        except TimeoutError:
            raise NoEngine(
                f"no engine takes requests and none came back within {self._wait_s:g} s: "
                f"{self.states()}"
            ) from None

    async def _all_down(self, names: list[str]) -> bool:
        """Whether every engine that refused is down; those are quarantined then."""
        members = [(name, self._members[name]) for name in names if name in self._members]
        down = await asyncio.gather(*(self._is_down(name, member) for name, member in members))
        return all(down)

    async def _note_failure(self, name: str, member: Member, error: EngineError) -> bool:
        """Count a failure and, if need be, set the engine aside; whether it is down."""
        member.failures_in_row += 1
        if await self._is_down(name, member):
            return True
        many = member.failures_in_row >= FAILURES_TO_QUARANTINE
        others = [other for other in self.active() if other != name]
        if many and others and self._state(name) is EngineState.ACTIVE:
            why = f"{member.failures_in_row} failures in a row, the last one: {error}"
            self._set_aside(name, why, wait_s=self._probe_s)
        return False

    def counters(self) -> Mapping[str, float]:
        """Counts since the beginning for the log; engines that are gone included."""
        routed = self.balancer.routed()
        served = total(self._gone, *(member.served for member in self._members.values()))
        moved = {f"serving/requests_{f.name}": getattr(routed, f.name) for f in fields(Routed)}
        done = {f"serving/{f.name}": getattr(served, f.name) for f in fields(Served)}
        own = {
            "serving/turns_resampled": self.turns_resampled,
            "serving/quarantines": self.quarantines,
        }
        return {**done, **moved, **own}

    # -- weights ----------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version that the engines which take requests sample from, or the last ones did.

        Raises:
            EngineError: they do not agree.
        """
        versions = {name: self._members[name].engine.version for name in self.active()}
        if not versions:
            return self._served
        if len(set(versions.values())) != 1:
            raise EngineError(f"engines have different weight versions: {versions}")
        return next(iter(versions.values()))

    async def pause_all(self, *, or_none: bool = False) -> None:
        """Stop every engine that serves from producing tokens; returns once all have stopped.

        No engine joins or comes back until `resume_all`. One that does not stop within
        `pause_limit_s` is quarantined.

        Args:
            or_none: it is no error that none serves.

        Raises:
            EngineError: none has stopped.
        """
        self._set_paused(True)
        if or_none and not self._serving():
            return
        await self._all("pause", _within(self._pause_limit_s, lambda engine: engine.pause()))

    async def resume_all(self) -> None:
        """Resume every engine that serves; one that does not is quarantined.

        Raises:
            EngineError: their versions do not agree, and none was resumed; or none resumes.
        """
        version = self.version
        await self._all("resume", _within(self._pause_limit_s, lambda engine: engine.resume()))
        self._set_paused(False)
        self._served = version

    async def stage_weights(self, ticket: WeightTicket) -> None:
        """Stage new weights in every engine that serves, beside those that it samples with.

        One that cannot takes them in `load_weights`. So does one that is silent for longer than
        `STAGE_LIMIT_S`, and one that serves no more catches up by itself: new weights of the others
        wait for neither.
        """

        async def stage(engine: Engine) -> None:
            async with LoopTimeout(STAGE_LIMIT_S):
                await engine.stage_weights(ticket)

        names, stages = self._serving(), list[asyncio.Task[None]]()
        for name in names:
            member = self._members[name]
            member.staging = asyncio.create_task(stage(member.engine))
            stages.append(member.staging)
        results = await asyncio.gather(*stages, return_exceptions=True)
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BaseException):
                logger.info("engine %s did not stage its weights: %r", name, result)

    async def load_weights(self, ticket: WeightTicket) -> None:
        """Give every engine that serves new weights, between `pause_all` and `resume_all`.

        An engine that fails, takes longer than `load_limit_s`, or ends up with another version, is
        quarantined and catches up by itself.

        Raises:
            EngineError: no engine took them.
        """

        async def load(engine: Engine) -> None:
            await engine.load_weights(ticket)
            if engine.version != ticket.version:
                raise EngineError(f"was given version {ticket.version} but has {engine.version}")

        await self._all("load_weights", _within(self._load_limit_s, load))

    async def close(self) -> None:
        """Close every engine. Idempotent.

        Raises:
            EngineError: an engine could not be closed; the others are.
        """
        await self._stop_tasks()
        failed = await self._each(list(self._members), lambda engine: engine.close())
        if failed:
            raise _failure("close", failed)

    async def _all(self, what: str, act: Act) -> None:
        """Act on every engine that serves; those that fail are quarantined, unless all do."""
        names = self._serving()
        failed = await self._each(names, act)
        for name, error in failed.items():
            if name in self.names():
                self.member(name).stuck |= isinstance(error, Silent | WakeFailed)
        if len(failed) == len(names):
            raise _failure(what, failed)
        for name, error in failed.items():
            if name in self.names():
                self.quarantine(name, f"{what} failed: {error}")

    def _serving(self) -> list[str]:
        serving = (EngineState.ACTIVE, EngineState.DRAINING)
        return [name for name in self.names() if self._state(name) in serving]

    async def _each(self, names: Sequence[str], act: Act) -> dict[str, BaseException]:
        """Act on all at once; all are awaited even if one fails. Returns the errors."""
        work = (act(self._members[name].engine) for name in names)
        results = await asyncio.gather(*work, return_exceptions=True)
        pairs = zip(names, results, strict=True)
        return {name: result for name, result in pairs if isinstance(result, BaseException)}


def _within(limit_s: float, act: Act) -> Act:
    """The same, as an engine that takes longer is stuck."""

    async def limited(engine: Engine) -> None:
        try:
            async with LoopTimeout(limit_s):
                await act(engine)
        except TimeoutError:
            raise Silent(f"no answer within {limit_s:g} s") from None

    return limited


def _failure(what: str, failed: Mapping[str, BaseException]) -> EngineError:
    details = "; ".join(f"{name}: {error!r}" for name, error in failed.items())
    error = EngineError(f"{what} failed on {details or 'every engine: there is none'}")
    error.__cause__ = next(iter(failed.values()), None)
    return error
