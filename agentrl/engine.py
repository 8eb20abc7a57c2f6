"""The contract of an inference engine: token ids in, token ids and log-probabilities out.

No text crosses it. `Generator` is the half a rollout needs; `Engine` adds the control that the
runtime needs to change weights underneath. The token client offers the first half over many
engines; an engine offers both.
"""

from __future__ import annotations

import collections.abc
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agentrl.errors import EngineError, EngineRefused
from agentrl.types import Generation, ImageSpan, SamplingParams

LONGEST_TURN_S = 24 * 3600.0
"""Seconds after which a connection gives up a turn of which nothing was heard, pauses included. The
limit of a turn that decodes is `TURN_LIMIT_S`."""
TURN_LIMIT_S = 3600.0
"""Seconds that an engine may decode one model turn. Waits for an engine, the queue of the embedded
one and pauses for new weights do not count."""


class TurnClock(Protocol):
    """The time limit of a turn, which stands still while nothing is decoded for it.

    The task that asks for a turn sets it (`TURN_CLOCK`); the parts between it and the engine hold
    it while the turn waits. Calls may be nested, and belong to the event loop of the turn.
    """

    def hold(self) -> None:
        """Stop the clock until `release`."""
        ...

    def release(self) -> None:
        """Start the clock again, once every `hold` has been released."""
        ...


class _NoClock:
    """The clock of turns without a limit."""

    def hold(self) -> None: ...

    def release(self) -> None: ...


TURN_CLOCK: ContextVar[TurnClock] = ContextVar("TURN_CLOCK", default=_NoClock())  # noqa: B039
"""Clock of the turn that the present task asks for; where none is set, nothing is limited."""


@contextmanager
def turn_held() -> collections.abc.Generator[None]:
    """Stop the clock of the turn that this task asks for while the block runs."""
    clock = TURN_CLOCK.get()
    clock.hold()
    try:
        yield
    finally:
        clock.release()


def refuse_images(name: str, images: Sequence[ImageSpan]) -> None:
    """Turn away a request with images at an engine that reads text only.

    Args:
        name: of the engine.
        images: of the request.

    Raises:
        EngineRefused: there are images.
    """
    if images:
        raise EngineRefused(
            f"engine {name} reads text only, and the prompt has {len(images)} images; images are "
            "read by the embedded engine and by vLLM servers of a vision-language model"
        )


class Generator(Protocol):
    """Samples turns. What `ToolAgentLoop` is given."""

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """Sample one turn after `prompt_ids`.

        Args:
            prompt_ids: everything before the turn, exactly as the engine shall see it. It may be
                the live list of a rollout: read it during the call, never change or keep it.
            sampling: how to sample; `max_tokens` is a hard bound.
            session_id: the same for all turns of a rollout, so that caches can be reused.
            images: among `prompt_ids`, by position; callers leave it out where there are none.

        Raises:
            EngineRefused: the request was turned away before anything was sampled; so is one with
                images at an engine that reads text only.
            EngineError: the engine failed.
        """
        ...

    async def end_session(self, session_id: str) -> None:
        """Announce that no more turns of this session will come. Unknown sessions are ignored."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """The state that an engine reports of itself."""

    ready: bool
    """Whether it takes requests."""
    version: int
    """The weights it samples from."""
    in_flight: int
    """Requests being generated or waiting."""
    detail: str = ""
    """Reason if the engine is not ready."""
    metrics: Mapping[str, float] | None = None
    """Engine-specific numbers for the log."""
    asked: bool = True
    """False where this machine could not ask: nothing is known, and `ready` is False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTicket:
    """Names which weights to take and where they lie. Small, and serialisable as JSON."""

    backend: str
    """Who moves them: `inprocess`, `shm`, `disk`, `collective`, ..."""
    version: int
    """Tokens sampled with them carry this; strictly larger than the engine's."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the receiver of the backend needs: a segment, a folder, an address."""
    checksum: str = ""
    """Of all tensors; a receiver that arrives at another one has not received them. Empty where
    nothing moves, or where it travels with the last bucket."""


class Engine(ABC):
    """One inference engine: the embedded torch engine, or one vLLM server."""

    name: str
    """Unique among the engines behind one balancer."""
    reports_cached: bool = False
    """Whether it keeps prefixes and counts in `Generation.cached_tokens` how much of them it found.
    Where not, 0 of them may also mean that nothing is known."""

    @abstractmethod
    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """Sample one turn; see `Generator.generate`."""

    async def end_session(self, session_id: str) -> None:  # noqa: B027 - optional by design
        """Release what is cached for the session."""

    @abstractmethod
    async def pause(self) -> None:
        """Stop producing tokens; requests in flight keep their state. Returns once stopped."""

    @abstractmethod
    async def resume(self) -> None:
        """Go on producing tokens."""

    async def prepare_weights(  # noqa: B027 - only backends with a rendezvous need it
        self, backend: str, info: Mapping[str, Any]
    ) -> None:
        """Meet the sender, once before its first ticket, or again when the fleet has changed.

        Args:
            backend: as in the tickets that will come.
            info: for this engine, from `WeightSender.connect`.

        Raises:
            EngineError: the rendezvous failed.
        """

    async def stage_weights(self, ticket: WeightTicket) -> None:  # noqa: B027 - saves time only
        """Take weights beside those that sample, before `pause`, so that `load_weights` is short.

        Raises:
            EngineError: they could not be staged; `load_weights` takes them all the same.
        """

    async def sleep(self, level: Literal[1, 2]) -> None:
        """Free the device, paused; `load_weights` and `resume` take it again.

        Args:
            level: 1 keeps the weights in main memory; 2 forgets them, so that `resume` fails until
                new ones have been loaded.

        Raises:
            EngineError: it cannot; its memory may be anywhere.
        """
        raise EngineError(f"engine {self.name} cannot sleep (level {level})")

    async def weight_digests(self) -> Mapping[str, Sequence[Any]]:
        """Dtype, shape and digest of the weights it computes with, by its own names for them.

        Raises:
            EngineError: they cannot be read back.
        """
        return {}

    @abstractmethod
    async def load_weights(self, ticket: WeightTicket) -> None:
        """Take new weights while paused; tokens sampled from now on carry `ticket.version`.

        Nothing that was computed with older weights serves a request that begins afterwards.

        Raises:
            EngineError: not paused, an older version, or weights that do not fit or did not
                arrive whole. The engine must not sample before a later ticket succeeds.
        """

    @property
    @abstractmethod
    def version(self) -> int:
        """The version of the weights that sample the next token."""

    @abstractmethod
    async def health(self) -> EngineHealth:
        """State and numbers; never raises for an engine that is merely down."""

    @abstractmethod
    async def close(self) -> None:
        """Stop and free everything; pending requests fail with `EngineError`. Idempotent."""
