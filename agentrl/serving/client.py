"""`TokenClient`: the `Generator` that rollouts see, over one engine or many.

The balancer decides, the client only asks, awaits and releases. What happens to a turn whose
engine did not answer depends on what is known about it:

- refused: nothing was sampled, so another engine is asked;
- lost with its engine, which is down or was quarantined: another engine is asked, once, and the
  turn is counted as resampled. Nothing of the lost sample is known here, so nothing of it can enter
  the trajectory, and it went because its engine did, not because of what it said: drawing again,
  with the same seed, draws from the same distribution. A loss that does depend on the content (a
  turn that kills its server) would bias this, so the second loss of a turn is final;
- failed on an engine that is well: it may have been sampled, and failed for a reason that may have
  to do with the sample (too long, not finite). Asking again until an answer is acceptable would
  select; the turn fails, and the rollout with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from agentrl.engine import Engine, WeightTicket
from agentrl.errors import EngineError, EngineRefused
from agentrl.serving.balancer import LoadBalancer
from agentrl.serving.fleet import FAILURES_TO_QUARANTINE, Fleet, Recover
from agentrl.serving.member import Member, TakenAway
from agentrl.serving.records import EngineState, Routed, Served, total
from agentrl.types import Generation, SamplingParams

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Prefix:
    """What the engine of a session holds in its cache after the last turn."""

    tokens: int
    """Prompt and generation."""
    version: int
    """The weights the cache was computed with; worth nothing under others."""


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
    ) -> None:
        """Take the engines.

        Args:
            engines: at least one, with unique names.
            balancer: must be empty; default a new one.
            probe_s: as `Fleet`.
            recover: as `Fleet`.
            wait_s: seconds a turn waits for an engine to come back when none takes requests; 0
                fails at once, for engines that do not come back.

        Raises:
            ValueError: no engine, two of one name, or a balancer that has engines already.
        """
        super().__init__(engines, balancer, probe_s=probe_s, recover=recover)
        self.turns_resampled = 0
        """Turns that were lost with their engine and asked of another."""
        self._wait_s = wait_s
        self._prefixes: dict[str, _Prefix] = {}
        self._goodbyes: dict[tuple[str, str], asyncio.Task[None]] = {}

    # -- Generator --------------------------------------------------------------------------

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session_id: str
    ) -> Generation:
        """See `Generator.generate`; which failures are tried again says the module.

        Raises:
            EngineRefused: all engines turned it away, or the client is closed.
            EngineError: the engine of the session failed, or none takes requests.
        """
        refused: list[str] = []
        lost = False
        deadline = 0.0
        while True:
            if not self.active():
                deadline = deadline or asyncio.get_running_loop().time() + self._wait_s
                await self._wait_for_engine(deadline)
            if all(name in refused for name in self.active()):
                # The others have left since they were asked; who refused may have room by now.
                refused.clear()
            name, member = self._seat(session_id, len(prompt_ids), refused)
            deadline = 0.0  # the next wait is for another loss
            try:
                return await self._ask_turn(name, member, prompt_ids, sampling, session_id)
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
                if lost or self._closed:
                    raise
                lost = True
                self.turns_resampled += 1
                logger.warning(
                    "session %s: a turn was lost with engine %s and is asked of another: %s",
                    session_id,
                    name,
                    error,
                )

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
    ) -> Generation:
        try:
            if (goodbye := self._goodbyes.get((name, session_id))) is not None:
                # The session is back before its end arrived, and must not end later.
                await asyncio.wait([goodbye])
            generation = await member.generate(prompt_ids, sampling, session_id)
        finally:
            self.balancer.release(name)
        tokens = len(prompt_ids) + len(generation.ids)
        self._prefixes.pop(session_id, None)
        self._prefixes[session_id] = _Prefix(tokens, member.engine.version)
        if len(self._prefixes) > self.balancer.max_sessions:
            del self._prefixes[next(iter(self._prefixes))]
        return generation

    async def _wait_for_engine(self, deadline: float) -> None:
        if self._closed:
            raise EngineRefused("the client is closed")
        try:
            await self._until_active(deadline)
        except TimeoutError:
            states = ", ".join(
                f"{n} ({self._state(n)}{': ' + m.why if m.why else ''})"
                for n, m in self._members.items()
            )
            raise EngineError(
                f"no engine takes requests and none came back within {self._wait_s:g} s: "
                f"{states or 'there is none'}"
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

        No engine joins or comes back until `resume_all`. One that does not stop is quarantined.

        Args:
            or_none: it is no error that none serves.

        Raises:
            EngineError: none has stopped.
        """
        self._paused = True
        if or_none and not self._serving():
            return
        await self._all("pause", lambda engine: engine.pause())

    async def resume_all(self) -> None:
        """Let every engine that serves go on; one that does not is quarantined.

        Raises:
            EngineError: their versions do not agree, and none was resumed; or none resumes.
        """
        version = self.version
        await self._all("resume", lambda engine: engine.resume())
        self._paused, self._served = False, version

    async def load_weights(self, ticket: WeightTicket) -> None:
        """Give every engine that serves new weights, between `pause_all` and `resume_all`.

        An engine that fails, or ends up with another version, is quarantined and catches up by
        itself.

        Raises:
            EngineError: no engine took them.
        """

        async def load(engine: Engine) -> None:
            await engine.load_weights(ticket)
            if engine.version != ticket.version:
                raise EngineError(f"was given version {ticket.version} but has {engine.version}")

        await self._all("load_weights", load)

    async def close(self) -> None:
        """Close every engine. Idempotent.

        Raises:
            EngineError: an engine could not be closed; the others are.
        """
        await self._stop_tasks()
        failed = await self._each(list(self._members), lambda engine: engine.close())
        if failed:
            raise _failure("close", failed)

    async def _all(self, what: str, act: Callable[[Engine], Awaitable[None]]) -> None:
        """Act on every engine that serves; those that fail are quarantined, unless all do."""
        names = self._serving()
        failed = await self._each(names, act)
        if len(failed) == len(names):
            raise _failure(what, failed)
        for name, error in failed.items():
            if name in self.names():
                self.quarantine(name, f"{what} failed: {error}")

    def _serving(self) -> list[str]:
        serving = (EngineState.ACTIVE, EngineState.DRAINING)
        return [name for name in self.names() if self._state(name) in serving]

    async def _each(
        self, names: Sequence[str], act: Callable[[Engine], Awaitable[None]]
    ) -> dict[str, BaseException]:
        """Act on all at once; all are awaited even if one fails. Returns the errors."""
        work = (act(self._members[name].engine) for name in names)
        results = await asyncio.gather(*work, return_exceptions=True)
        pairs = zip(names, results, strict=True)
        return {name: result for name, result in pairs if isinstance(result, BaseException)}


def _failure(what: str, failed: Mapping[str, BaseException]) -> EngineError:
    details = "; ".join(f"{name}: {error!r}" for name, error in failed.items())
    error = EngineError(f"{what} failed on {details or 'every engine: there is none'}")
    error.__cause__ = next(iter(failed.values()), None)
    return error
