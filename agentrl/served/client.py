"""The one client for served models: judges, simulated users and writers ask through it.

    ask -> answer known on disk? -> the same request under way? -> a place at the server
        -> attempts, with waits between them -> accepted? -> asked once more -> kept

Invariants: an answer that was not accepted is not kept; a failure is `ServedModelError`, never an
answer; no message holds the key; of a response no more than `attempts.LARGEST_ANSWER` is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from agentrl.errors import ConfigError, ServedModelError
from agentrl.served import wire
from agentrl.served.attempts import LARGEST_ANSWER, Attempts, GaveUp, PlainRequest, Schema
from agentrl.served.budget import loop_state
from agentrl.served.cache import AnswerCache, digest_of
from agentrl.served.settings import ServedSettings
from agentrl.served.turns import ServedTurn, read_served_turn, turn_body
from agentrl.served.waiting import in_line
from agentrl.types import Message, usage
from agentrl.types.usage import spend

T = TypeVar("T")


class ServedModel:
    """Asks a model behind a server. One object may be used from several event loops."""

    def __init__(self, settings: ServedSettings, *, where: str = "") -> None:
        """Set where the model is; nothing is asked yet.

        Args:
            settings: address, bounds and prices.
            where: key of the run file that holds them, for messages.

        Raises:
            ConfigError: the variable with the key is not set.
        """
        self.settings = settings
        self.url = wire.endpoint(settings)
        self._where = where
        self._cache = AnswerCache(Path(settings.cache).expanduser()) if settings.cache else None
        self._attempts = Attempts(settings)
        try:
            settings.require_key()
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}" if where else str(error)) from None

    def require_cache(self) -> None:
        """Check that answers can be kept, where they shall be.

        Raises:
            ConfigError: the folder cannot be written to.
        """
        if self._cache is not None:
            self._cache.require_writable()

    async def complete(self, messages: wire.ChatMessages) -> str:
        """The model's next message.

        Raises:
            ServedModelError: see `ask`.
        """
        return await self.ask(messages, lambda text: text)

    async def ask(
        self,
        messages: wire.ChatMessages,
        accept: Callable[[str], T],
        *,
        schema: Schema = None,
    ) -> T:
        """The model's answer as `accept` reads it.

        Args:
            messages: to answer; they also describe the form of a structured answer, for servers
                that cannot hold it to a schema.
            accept: makes a value of the text, or raises ValueError with a reason that quotes
                nothing of the text; the model is then asked once more and given the reason.
            schema: JSON schema of the answer; None for free text.

        Raises:
            ServedModelError: the server could not be asked, in all attempts and all of
                `timeout_s`; or both answers were not accepted. Says which.
        """
        if self._cache is None:
            return (await self._fresh(messages, accept, schema))[1]
        digest = digest_of(
            {
                "form": 1,
                "url": self.url,
                "version": self.settings.version,
                "body": wire.request_body(self.settings, messages, schema),
            }
        )
        flights = loop_state().flights
        while (flight := flights.get(digest)) is not None:
            with in_line():
                outcome = await asyncio.shield(flight)
            if isinstance(outcome, Exception):
                raise ServedModelError(str(outcome)) from outcome
            if outcome is not None:  # else the one who asked was cancelled
                known = _accepted(outcome, accept)
                if known is None:
                    return (await self._fresh(messages, accept, schema))[1]
                spend(usage.SERVED_CACHED, 1)
                return known[0]
        return await self._flown(self._cache, digest, messages, accept, schema)

    async def turn(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> ServedTurn:
        """The model's next turn in a conversation with tools. Not cached.

        Args:
            messages: the conversation.
            tools: schemas in OpenAI's form.
            max_tokens: most tokens of the turn; never more than the settings allow.
            stop: texts that end the turn.

        Raises:
            ServedModelError: see `read`.
        """
        settings = self.settings
        body = turn_body(settings, messages, tools=tools, max_tokens=max_tokens, stop=stop)
        path = self.url.removeprefix(settings.url.rstrip("/").removesuffix("/v1"))
        return await self.read(path, body, lambda answer: read_served_turn(settings, answer))

    async def read(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Any], T],
        *,
        largest: int = LARGEST_ANSWER,
    ) -> T:
        """Result of `read` for the answer to a request that is no conversation. Not cached.

        Args:
            path: of the server, as `/v1/completions` or `/tokenize`.
            body: JSON to post.
            read: makes a value of the answer's JSON, or raises ValueError with a reason; the
                same is then asked again.
            largest: bytes of an answer.

        Raises:
            ServedModelError: the server could not be asked, in all attempts and all of
                `timeout_s`; says why.
        """
        root = self.settings.url.rstrip("/").removesuffix("/v1")
        request = PlainRequest(url=root + path, body=body, largest=largest)
        gate = loop_state().gate(self.url)
        failures: list[str] = []
        async with gate.place(self.settings.max_in_flight):
            try:
                async with asyncio.timeout(self.settings.timeout_s):
                    return await self._attempts.read(gate, request, read, failures)
            except GaveUp:
                pass
            except TimeoutError:
                failures.append(f"no answer in {self.settings.timeout_s:g} s")
            self._fail(failures, url=request.url)

    async def _flown(
        self,
        cache: AnswerCache,
        digest: str,
        messages: wire.ChatMessages,
        accept: Callable[[str], T],
        schema: Schema,
    ) -> T:
        """A kept or a fresh answer, which others of this loop with the same request wait for."""
        flights = loop_state().flights
        flight = flights[digest] = asyncio.get_running_loop().create_future()
        outcome: str | Exception | None = None
        try:
            text = await asyncio.to_thread(cache.read, digest)
            known = None if text is None else _accepted(text, accept)
            if text is not None and known is not None:
                outcome = text
                spend(usage.SERVED_CACHED, 1)
                return known[0]
            outcome, value = await self._fresh(messages, accept, schema)
            about = {"model": self.settings.model, "url": self.url}
            await asyncio.to_thread(cache.write, digest, outcome, **about)
            return value
        except ServedModelError as error:
            outcome = error
            raise
        finally:
            del flights[digest]
            flight.set_result(outcome)

    async def _fresh(
        self, messages: wire.ChatMessages, accept: Callable[[str], T], schema: Schema
    ) -> tuple[str, T]:
        gate = loop_state().gate(self.url)
        failures: list[str] = []
        async with gate.place(self.settings.max_in_flight):
            try:
                async with asyncio.timeout(self.settings.timeout_s):
                    text = await self._attempts.answer(gate, messages, schema, failures)
                    try:
                        return text, accept(text)
                    except ValueError as error:
                        reason = f"an answer was not accepted: {error}"
                        failures.append(reason)
                    text = await self._attempts.answer(
                        gate, _once_more(messages, reason), schema, failures
                    )
                    try:
                        return text, accept(text)
                    except ValueError as error:
                        failures.append(f"nor was the next one: {error}")
            except GaveUp:
                pass
            except TimeoutError:
                failures.append(f"no answer in {self.settings.timeout_s:g} s")
            self._fail(failures)

    def _fail(self, failures: list[str], *, url: str = "") -> NoReturn:
        where = f"{self._where}: " if self._where else ""
        raise ServedModelError(
            f"{where}the model {self.settings.model!r} at {url or self.url} could not be asked: "
            f"{'; '.join(dict.fromkeys(failures))}"
        )


def _accepted(text: str, accept: Callable[[str], T]) -> tuple[T] | None:
    """The value of a known answer; None where another version of `accept` took it."""
    try:
        return (accept(text),)
    except ValueError:
        return None


def _once_more(messages: wire.ChatMessages, reason: str) -> wire.ChatMessages:
    """The messages with a last word on the answer to them, which itself is not repeated.

    It may hold text that was quoted to the model; as a turn of the model it would carry weight.
    """
    *before, last = messages
    said = f"{last['content']}\n\nYou were asked this before, and {reason}. Answer again."
    return [*before, {**last, "content": said}]
