"""Requests to one served model: an attempt, the next one, and the reasons of those that failed."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import aiohttp

from agentrl.served import wire
from agentrl.served.backoff import backoff_s, is_transient, retry_after_s
from agentrl.served.budget import Gate
from agentrl.served.formats import count_tokens
from agentrl.served.settings import ServedSettings
from agentrl.types import usage
from agentrl.types.usage import spend

logger = logging.getLogger(__name__)
T = TypeVar("T")

LARGEST_ANSWER = 4 * 2**20
"""Bytes of a response; one that is larger is a failure."""
_SHOWN = 200
"""Characters of a server's error text in messages."""
_CONNECT_S = 10.0
_SCHEMA_REFUSED = frozenset({400, 404, 415, 422, 501})
_JITTER = random.SystemRandom()

Schema = Mapping[str, Any] | None
"""JSON schema that an answer shall have; None for free text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRequest:
    """A request in a form of its own, which is posted as it is."""

    url: str
    """Address."""
    body: Mapping[str, Any]
    """JSON."""
    largest: int = LARGEST_ANSWER
    """Bytes of a response; one that is larger is a failure."""


class GaveUp(Exception):
    """No further attempt is made; the reasons are in the list that was given."""


class _PassingFailure(Exception):
    """A failed attempt; another one may succeed."""

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.wait_s = wait_s  # that the server asks for


class _LastingFailure(Exception):
    """A failed attempt that no other will mend."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Attempts:
    """Asks until there is a response with a text."""

    def __init__(self, settings: ServedSettings) -> None:
        """Ask a model; see `ServedModel`."""
        self._settings = settings
        self._url = wire.endpoint(settings)
        self._forms = wire.schema_forms(settings)
        self._warned = False

    async def answer(
        self, gate: Gate, messages: wire.ChatMessages, schema: Schema, failures: list[str]
    ) -> str:
        """The text of one good response.

        Args:
            gate: of the server, where a place is held.
            messages: to answer.
            schema: of the answer.
            failures: reasons of failed attempts are added, without the key.

        Raises:
            GaveUp: no attempt succeeded.
        """
        return await self._tried(
            gate, lambda session: self._attempt(session, messages, schema), failures
        )

    async def read(
        self,
        gate: Gate,
        request: PlainRequest,
        read: Callable[[Any], T],
        failures: list[str],
    ) -> T:
        """Result of `read` for the JSON of one good response to a request of any form.

        Args:
            gate: of the server, where a place is held.
            request: what is sent.
            read: raises ValueError for an answer that is not one; it is then asked again.
            failures: reasons of failed attempts are added, without the key.

        Raises:
            GaveUp: no attempt succeeded.
        """

        async def attempt(session: aiohttp.ClientSession) -> T:
            spend(usage.SERVED_REQUESTS, 1)
            return read(await self._json(session, request))

        return await self._tried(gate, attempt, failures)

    async def _tried(
        self,
        gate: Gate,
        attempt_once: Callable[[aiohttp.ClientSession], Awaitable[T]],
        failures: list[str],
    ) -> T:
        settings = self._settings
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            for attempt in range(settings.tries):
                await self._until_quiet(gate)
                try:
                    async with asyncio.timeout(settings.attempt_s or settings.timeout_s):
                        return await attempt_once(session)
                except _LastingFailure as error:
                    spend(usage.SERVED_FAILED, 1)
                    failures.append(str(error))
                    raise GaveUp from None
                except _PassingFailure as error:
                    trouble = error
                except aiohttp.ClientError as error:
                    trouble = _PassingFailure(f"{type(error).__name__}: {error}")
                except TimeoutError:
                    trouble = _PassingFailure(f"no answer in {settings.attempt_s:g} s")
                except (OSError, ValueError) as error:
                    trouble = _PassingFailure(f"{type(error).__name__}: {error}")
                spend(usage.SERVED_FAILED, 1)
                failures.append(self._without_key(str(trouble)))
                if attempt + 1 == settings.tries:
                    break
                wait_s = backoff_s(attempt, _JITTER.random())
                if trouble.wait_s is not None:
                    if trouble.wait_s >= settings.timeout_s:
                        failures.append(f"the server asks to wait {trouble.wait_s:g} s")
                        break
                    loop_s = asyncio.get_running_loop().time()
                    gate.quiet_until = max(gate.quiet_until, loop_s + trouble.wait_s)
                await asyncio.sleep(wait_s)
        raise GaveUp

    async def _until_quiet(self, gate: Gate) -> None:
        """Wait as long as the server asked all requests to wait, spread over a tenth more."""
        loop = asyncio.get_running_loop()
        while (wait_s := gate.quiet_until - loop.time()) > 0:
            await asyncio.sleep(wait_s * (1 + 0.1 * _JITTER.random()) + 1e-3)

    async def _attempt(
        self, session: aiohttp.ClientSession, messages: wire.ChatMessages, schema: Schema
    ) -> str:
        if schema is None:
            return await self._post(session, messages, None, None)
        forms = self._forms
        for number, form in enumerate(forms):
            try:
                text = await self._post(session, messages, schema, form)
            except _LastingFailure as error:
                if error.status not in _SCHEMA_REFUSED:
                    raise
                refused = error
            else:
                self._forms = forms[number:]
                return text
        text = await self._post(session, messages, None, None)
        # Only now is it known that the schema was the reason.
        if forms:
            self._forms = ()
            logger.info("%s holds no answer to a JSON schema: %s", self._url, refused)
        return text

    async def _post(
        self,
        session: aiohttp.ClientSession,
        messages: wire.ChatMessages,
        schema: Schema,
        form: wire.SchemaForm | None,
    ) -> str:
        spend(usage.SERVED_REQUESTS, 1)
        body = wire.request_body(self._settings, messages, schema, form)
        answer = await self._json(session, PlainRequest(url=self._url, body=body))
        return wire.answer_text(self._settings, answer)

    async def _json(self, session: aiohttp.ClientSession, request: PlainRequest) -> Any:
        """The JSON of a response with status 200; its tokens are booked."""
        async with session.post(
            request.url,
            json=request.body,
            headers=wire.headers(self._settings),
            allow_redirects=False,  # another host would receive the key
        ) as response:
            content = await self._content(response, request.largest)
            if response.status != 200:
                self._bad_status(response, content)
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _PassingFailure(f"the response is not JSON ({type(error).__name__})") from None
        self._book(answer)
        return answer

    async def _content(self, response: aiohttp.ClientResponse, largest: int) -> bytes:
        content = bytearray()
        async for part in response.content.iter_chunked(65_536):
            content += part
            if len(content) > largest:
                response.close()
                raise _LastingFailure(f"the response is larger than {largest} bytes")
        return bytes(content)

    def _bad_status(self, response: aiohttp.ClientResponse, content: bytes) -> NoReturn:
        said = " ".join(self._without_key(content.decode(errors="replace")).split())[:_SHOWN]
        text = f"status {response.status}: {said}"
        if is_transient(response.status):
            raise _PassingFailure(text, retry_after_s(response.headers, time.time()))
        if response.status in (401, 403):
            text += " (check the key in the variable that api_key_env names)"
        raise _LastingFailure(text, response.status)

    def _book(self, answer: Any) -> None:
        """Count the tokens of a response, whatever becomes of it: they have to be paid."""
        counted = count_tokens(self._settings.api, answer)
        read, written = counted.prompt, counted.completion
        if read is None or written is None:
            priced = self._settings.price_in or self._settings.price_out
            if priced and not self._warned:
                self._warned = True
                logger.warning("%s reports no tokens, so its cost is not known", self._url)
        spend(usage.SERVED_PROMPT_TOKENS, read or 0)
        spend(usage.SERVED_COMPLETION_TOKENS, written or 0)
        cost = (read or 0) * self._settings.price_in + (written or 0) * self._settings.price_out
        spend(usage.SERVED_COST, cost / 1e6)

    def _without_key(self, text: str) -> str:
        key = self._settings.key()
        return text.replace(key, "[key]") if key else text
