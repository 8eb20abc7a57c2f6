"""An engine that replies from a script, and remembers everything it was asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrl.engine import Engine, EngineHealth, WeightTicket
from agentrl.errors import EngineError, EngineRefused
from agentrl.types import FinishReason, Generation, ImageSpan, SamplingParams

Replies = Sequence[str] | Callable[[Sequence[int], str], str]
"""The turns of every session in order (the last one repeats), or a function of the prompt ids and
the session id."""


class Encoder(Protocol):
    """The part of a tokenizer that a scripted engine needs."""

    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRequest:
    """One call of `generate`."""

    prompt_ids: tuple[int, ...]
    """Copy of the prompt's ids."""
    sampling: SamplingParams
    """Sampling parameters of the turn."""
    session_id: str
    """Session of the turn."""
    generation: Generation | None = None
    """The answer; None if it failed."""


class ScriptedEngine(Engine):
    """An `Engine` without a model.

    Replies end with the first stop token of the request and are truncated at `max_tokens`. The
    log-probability of a token depends on the token and on its position in the whole sequence
    (`log_prob`), so a test sees when one is off by one.

    Example:
        >>> engine = ScriptedEngine(["hello"], ByteTokenizer())
        >>> generation = await engine.generate([1, 2], SamplingParams(), "session")
        >>> generation.finish_reason
        <FinishReason.STOP: 'stop'>
    """

    def __init__(
        self,
        replies: Replies,
        tokenizer: Encoder,
        *,
        delay_s: float = 0.0,
        fail: Callable[[int, str], Exception | None] | None = None,
        version: int = 0,
        name: str = "scripted-0",
    ) -> None:
        """Take the script.

        Args:
            replies: what to say.
            tokenizer: encodes the replies; its end token ends them if a request names none.
            delay_s: seconds that every request takes.
            fail: given the number of the request (from 0) and its session, an error to raise
                instead of answering, or None.
            version: of the pretended weights.
            name: of the engine.
        """
        self.name = name
        self.requests: list[ScriptedRequest] = []
        """Everything asked, in the order in which it was answered."""
        self.ended: list[str] = []
        """Sessions that were ended, in order."""
        self.loaded: list[WeightTicket] = []
        """Tickets given to `load_weights`."""
        self.in_flight = 0
        """Requests being answered."""
        self._replies = replies
        self._tokenizer = tokenizer
        self._delay_s = delay_s
        self._fail = fail
        self._version = version
        self._started = 0
        self._turns: Counter[str] = Counter()
        self._running = asyncio.Event()
        self._running.set()
        self._closed = False

    @staticmethod
    def log_prob(token: int, position: int) -> float:
        """The log-probability of `token` at `position` of the whole sequence."""
        return -(1 + (31 * position + token) % 997) / 1000

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """Return the next reply of the session's script."""
        if self._closed:
            raise EngineRefused(f"engine {self.name} is closed")
        number = self._started
        self._started += 1
        self.in_flight += 1
        generation: Generation | None = None
        try:
            error = self._fail(number, session_id) if self._fail else None
            if error is not None:
                raise error
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await self._running.wait()
            if self._closed:
                raise EngineError(f"engine {self.name} was closed")
            generation = self._answer(prompt_ids, sampling, session_id)
            return generation
        finally:
            self.in_flight -= 1
            self.requests.append(
                ScriptedRequest(
                    prompt_ids=tuple(prompt_ids),
                    sampling=sampling,
                    session_id=session_id,
                    generation=generation,
                )
            )

    def _answer(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session_id: str
    ) -> Generation:
        turn = self._turns[session_id]
        self._turns[session_id] += 1
        if callable(self._replies):
            text = self._replies(prompt_ids, session_id)
        else:
            text = self._replies[min(turn, len(self._replies) - 1)]
        stop = (*sampling.stop_token_ids, self._tokenizer.eos_token_id)[0]
        ids = list(self._tokenizer.encode(text, add_special_tokens=False))
        if stop is not None:
            ids.append(stop)
        reason = FinishReason.STOP if len(ids) <= sampling.max_tokens else FinishReason.LENGTH
        ids = ids[: sampling.max_tokens]
        start = len(prompt_ids)
        return Generation(
            ids=tuple(ids),
            log_probs=tuple(self.log_prob(token, start + i) for i, token in enumerate(ids)),
            finish_reason=reason,
            policy_versions=(self._version,) * len(ids),
        )

    async def end_session(self, session_id: str) -> None:
        """Record that a session has ended."""
        self.ended.append(session_id)
        self._turns.pop(session_id, None)

    async def pause(self) -> None:
        """Answer nothing until `resume`."""
        self._running.clear()

    async def resume(self) -> None:
        """Answer requests again after `pause`."""
        self._running.set()

    async def load_weights(self, ticket: WeightTicket) -> None:
        """Remember the ticket and take its version."""
        if self._running.is_set():
            raise EngineError(f"engine {self.name}: pause before load_weights")
        if ticket.version <= self._version:
            raise EngineError(
                f"engine {self.name}: version {ticket.version} is not larger than {self._version}"
            )
        self.loaded.append(ticket)
        self._version = ticket.version

    @property
    def version(self) -> int:
        """The version of the last `load_weights`."""
        return self._version

    async def health(self) -> EngineHealth:
        """Report ready until it is closed."""
        return EngineHealth(
            ready=not self._closed,
            version=self._version,
            in_flight=self.in_flight,
            detail="closed" if self._closed else "",
        )

    async def close(self) -> None:
        """Refuse everything from now on; what waits fails."""
        self._closed = True
        self._running.set()
