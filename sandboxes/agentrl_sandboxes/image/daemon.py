"""The few requests to the Docker daemon that images need; each error explains what to do."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp

from agentrl.errors import SandboxError
from agentrl_sandboxes.docker.address import Address, find_address
from agentrl_sandboxes.docker.failures import unreachable

HOST = "http://docker"
"""Stands where an address has a host; the connector knows the real one."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SILENCE_S = 300.0
"""How long the daemon may stay silent while it imports or builds."""


class Daemon:
    """A connection to the daemon."""

    def __init__(self, address: Address, session: aiohttp.ClientSession, base: str) -> None:
        self.address = address
        self._session = session
        self._base = base
        self._known = False

    async def get(self, path: str, **query: str) -> Any:
        """The answer to a GET, None for 404."""
        async with self._request("GET", path, query) as answer:
            return None if answer is None else await answer.json(content_type=None)

    async def delete(self, path: str) -> bool:
        """Delete, and return True, unless it is in use or gone."""
        async with self._request("DELETE", path, {}, quiet=(409,)) as answer:
            return answer is not None

    async def post(
        self,
        path: str,
        query: list[tuple[str, str]],
        data: AsyncIterator[bytes] | bytes,
        on_line: Callable[[str], None],
        on_said: Callable[[Mapping[str, Any]], None] = lambda words: None,
    ) -> None:
        """Send an archive and report the daemon's messages until it is done.

        Args:
            path: what is asked for.
            query: its parameters.
            data: the archive; may be empty.
            on_line: called with each line of text.
            on_said: called with each answer as it came.

        Raises:
            SandboxError: it failed; the message is the daemon's.
        """
        body = io.BytesIO(data) if isinstance(data, bytes) else data
        async with self._request("POST", path, query, data=body, known=()) as answer:
            assert answer is not None  # every status of failure raises
            last: deque[str] = deque(maxlen=4)
            async for line in answer.content:
                said = json.loads(line) if line.strip() else {}
                on_said(said)
                if "error" in said:
                    before = f"; before that: {' | '.join(last)}" if last else ""
                    raise SandboxError(f"docker: {str(said['error']).strip()}{before}")
                text = _COLOUR.sub("", str(said.get("stream") or said.get("status") or ""))
                for part in filter(None, map(str.strip, text.splitlines())):
                    last.append(part)
                    on_line(part)

    @contextlib.asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        query: Any,
        *,
        data: Any = None,
        quiet: tuple[int, ...] = (),
        known: tuple[int, ...] = (404,),
    ) -> AsyncIterator[aiohttp.ClientResponse | None]:
        headers = {"Content-Type": "application/x-tar"} if data is not None else {}
        try:
            async with self._session.request(
                method, f"{self._base}/{path}", params=query, data=data, headers=headers
            ) as answer:
                self._known = True
                if answer.status in (*known, *quiet):
                    yield None
                    return
                if answer.status >= 400:
                    raise SandboxError(f"docker: {await _message(answer)}")
                yield answer
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            cause = getattr(error, "os_error", error)
            raise unreachable("image", self.address, cause, known=self._known) from error


async def _message(answer: aiohttp.ClientResponse) -> str:
    text = await answer.text()
    with contextlib.suppress(ValueError, AttributeError):
        text = json.loads(text).get("message", text)
    return text.strip() or f"status {answer.status}"


@contextlib.asynccontextmanager
async def daemon() -> AsyncIterator[Daemon]:
    """The daemon that the docker command would talk to.

    Raises:
        ConfigError: an address that cannot be used.
        SandboxUnavailable: nothing answers there, by the first request.
    """
    address = find_address()
    connector: aiohttp.BaseConnector
    if address.socket_path:
        connector, url = aiohttp.UnixConnector(address.socket_path), HOST
    else:
        connector = aiohttp.TCPConnector(ssl=address.tls() or True)
        secure = address.certificates or address.url.startswith("https://")
        host = address.url.partition("://")[2].rstrip("/")
        url = f"{'https' if secure else 'http'}://{host}"
    limit = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENCE_S)
    async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
        yield Daemon(address, session, url)
