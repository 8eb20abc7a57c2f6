"""HTTP to one server, with an exact account of what a failure means.

The one question after a failed request is whether the server may have acted on it. It cannot have
if no connection came about, or if it says so itself (4xx, 503): `EngineRefused`. In every other
case it may have: `EngineError`, and nothing is sent again from here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from agentrl.errors import EngineError, EngineRefused
from agentrl.serving.loop_timeout import LoopTimeout
from agentrl.serving.vllm.sockets import NO_DESCRIPTOR, NoDescriptor, wait_for_descriptor

CONNECT_LIMIT_S = 10.0
"""Seconds until a server must accept a connection."""
KEEP_ALIVE_S = 4.0
"""Seconds until an idle connection is closed. uvicorn closes them after 5 s unless set
otherwise, and a request written into a closing connection would be lost without a verdict."""

_HEADERS = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """Status and body of an HTTP answer."""

    status: int
    """HTTP status."""
    body: bytes
    """Whole body of the answer."""

    def json(self) -> Any:
        """The body decoded, or None where it is no JSON."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None

    def reason(self) -> str:
        """The server's own words in an error."""
        data = self.json()
        if isinstance(data, dict):
            error = data.get("error", data.get("detail", data))
            return str(error.get("message", error) if isinstance(error, dict) else error)
        return self.body[:300].decode(errors="replace").strip() or "no text"


class _Connector(aiohttp.TCPConnector):
    """Connections within a limit that a late event loop does not use up."""

    async def connect(self, *args: Any, **kwargs: Any) -> aiohttp.connector.Connection:
        try:
            async with LoopTimeout(CONNECT_LIMIT_S):
                return await super().connect(*args, **kwargs)
        except TimeoutError:
            why = f"not accepted within {CONNECT_LIMIT_S:g} s"
            raise aiohttp.ConnectionTimeoutError(why) from None


class _Pool:
    """One session of aiohttp and who uses it."""

    def __init__(self, keep_alive_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.users = 0
        self.retired = False
        self.session = aiohttp.ClientSession(
            connector=_Connector(limit=0, keepalive_timeout=keep_alive_s),
            timeout=aiohttp.ClientTimeout(),  # the limits are ours
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            trust_env=False,  # a proxy in the environment is not meant for the next machine
        )


class Http:
    """Persistent connections to one server, as many as there are requests at once.

    A session of aiohttp belongs to the event loop in which it was made, so there is one per loop;
    `close` ends them all. After an answer of 5xx the session is exchanged: uvicorn closes that
    connection without saying so, and what is written into it next would be lost without a verdict.
    """

    def __init__(self, url: str, *, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        """Take the server.

        Args:
            url: as `http://host:port`.
            keep_alive_s: seconds an idle connection is kept; less than the server keeps it.
        """
        self.url = url.rstrip("/")
        self._keep_alive_s = keep_alive_s
        self._pools: list[_Pool] = []

    def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        for pool in self._pools:
            if pool.loop is loop and not pool.retired:
                return pool
        pool = _Pool(self._keep_alive_s)
        self._pools.append(pool)
        return pool

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        limit_s: float,
        wait: bool = True,
    ) -> HttpAnswer:
        """One request, sent once.

        Args:
            method: `GET` or `POST`.
            path: with its query.
            body: JSON.
            limit_s: seconds until all of the answer must be there.
            wait: where no file descriptor is free, wait for one.

        Raises:
            NoDescriptor: none was free, and it is not waited for.
            EngineRefused: no connection came about, so nothing was asked.
            EngineError: the connection broke or the time was up; the server may have acted.
        """
        what = f"{method} {self.url}{path}"
        pool = self._pool()
        pool.users += 1
        try:
            async with LoopTimeout(limit_s):
                while True:
                    try:
                        return await self._once(pool, method, path, body)
                    except aiohttp.ClientConnectorError as error:
                        if error.os_error.errno not in NO_DESCRIPTOR:
                            raise
                        why = error.os_error.strerror or str(error)
                    if not wait:
                        raise NoDescriptor(f"{what}: {why}")
                    await wait_for_descriptor(why)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise EngineRefused(f"{what}: no connection ({error or 'timed out'})") from None
        except aiohttp.InvalidURL:
            raise EngineRefused(f"{what}: not a URL; expected http://host:port") from None
        except TimeoutError:
            raise EngineError(f"{what}: no answer within {limit_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # ValueError: bytes that are no HTTP, found by the parser.
            raise EngineError(f"{what}: the connection broke ({error!r})") from None
        finally:
            pool.users -= 1
            if pool.retired and not pool.users and pool in self._pools:
                self._pools.remove(pool)
                await pool.session.close()

    async def _once(self, pool: _Pool, method: str, path: str, body: bytes | None) -> HttpAnswer:
        async with pool.session.request(
            method, self.url + path, data=body, headers=_HEADERS if body else None
        ) as response:
            pool.retired = pool.retired or response.status >= 500
            return HttpAnswer(status=response.status, body=await response.read())

    async def expect(
        self, method: str, path: str, content: Any = None, *, limit_s: float, wait: bool = True
    ) -> HttpAnswer:
        """As `send`, with JSON from `content`, for an answer that must be a success.

        Raises:
            NoDescriptor: as `send`.
            EngineRefused: as `send`, or the server turned it away (4xx, 503).
            EngineError: as `send`, or the server failed (other statuses).
        """
        body = None if content is None else orjson.dumps(content)
        answer = await self.send(method, path, body, limit_s=limit_s, wait=wait)
        return accept(answer, f"{method} {self.url}{path}")

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        here = asyncio.get_running_loop()
        pools, self._pools = self._pools, []
        for pool in pools:
            if pool.loop is here:
                await pool.session.close()
            elif not pool.loop.is_closed():
                asyncio.run_coroutine_threadsafe(pool.session.close(), pool.loop)


def accept(answer: HttpAnswer, what: str) -> HttpAnswer:
    """The answer, if it is a success.

    Raises:
        EngineRefused: 4xx or 503: the server did not begin.
        EngineError: anything else.
    """
    if answer.status == 200:
        return answer
    kind = EngineRefused if 400 <= answer.status < 500 or answer.status == 503 else EngineError
    raise kind(f"{what}: status {answer.status}: {answer.reason()}")
