"""Servers that join and leave a run while it goes on, as `agentrl control` asks for.

A server that joins gets the weights of the others before it serves: at once where staged weights
lie ready, with the next sync where they are broadcast. One that leaves gets no more turns; those it
has end there, or are asked of another after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from agentrl.config import RunConfig
from agentrl.config.fleet import ServingSection
from agentrl.engine import Engine
from agentrl.errors import AgentrlError, ConfigError
from agentrl.runtime.assembly.engine_care import beside
from agentrl.runtime.assembly.engines import UNKNOWN_VERSION
from agentrl.runtime.assembly.weight_route import urls_are_local
from agentrl.runtime.disk.server_requests import (
    RequestAnswer,
    ServerAction,
    ServerRequest,
    answer_request,
    forget_requests,
    read_requests,
)
from agentrl.serving.client import TokenClient
from agentrl.serving.connect import connect_engine

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks for requests."""
JOIN_S = 120.0
"""Seconds until a server that has joined and does not serve yet is reported as such."""
LEAVE_S = 60.0
"""Seconds that turns of a server that leaves have to end there."""
ONE_HOST = ("shm", "ipc")
"""Weight backends that reach servers on this machine only."""

Connect = Callable[[str, str], Awaitable[Engine]]
"""`(url, name)` to a connected engine."""
Check = Callable[[str], Awaitable[None]]
"""Raises `ConfigError` for the address of a server that the run cannot use."""


class LiveServers:
    """Answers requests for servers of one run until it is cancelled."""

    def __init__(
        self,
        run: Path,
        client: TokenClient,
        connect: Connect,
        check: Check,
        *,
        urls: dict[str, str],
        backend: str,
        note: Callable[[str], None],
        left: Callable[[str], None] = lambda name: None,
        join_s: float = JOIN_S,
        leave_s: float = LEAVE_S,
    ) -> None:
        """Take the engines of a run.

        Args:
            run: its directory.
            client: in front of its engines.
            connect: connects a server that joins.
            check: raises for a server that the run cannot use.
            urls: by name, the servers that the run may let go of.
            backend: by which weights reach the engines.
            note: called with each line for the user.
            left: called with the name of an engine that is gone.
            join_s: seconds until a server that does not serve yet is reported as such.
            leave_s: seconds that turns of a server that leaves have to end there.
        """
        self._run, self._client = run, client
        self._connect, self._check = connect, check
        self._urls = {name: url.rstrip("/") for name, url in urls.items()}
        self._backend, self._note, self._left = backend, note, left
        self._join_s, self._leave_s = join_s, leave_s

    async def run(self) -> None:
        """Answer one request after the other."""
        forget_requests(self._run)
        while True:
            for request in read_requests(self._run):
                answer = await self._answer(request)
                self._note(answer.text)
                try:
                    answer_request(request, answer)
                except OSError as error:  # a full disk: who asked reads the log of the run
                    logger.warning("no answer to %s: %s", request.path, error)
                    request.path.unlink(missing_ok=True)
            await asyncio.sleep(LOOK_S)

    async def _answer(self, request: ServerRequest) -> RequestAnswer:
        server = request.server.rstrip("/")
        act = self._add if request.action is ServerAction.ADD else self._remove
        try:
            return RequestAnswer(done=True, text=await act(server))
        except Exception as error:  # recording boundary: the run goes on without the change
            if not isinstance(error, AgentrlError):
                logger.exception("%s %s failed", request.action, server)
            return RequestAnswer(done=False, text=f"{request.action} {server}: {error}")

    async def _add(self, url: str) -> str:
        _check_address(url)
        if url in self._urls.values():
            raise ConfigError(f"{self._named(url)} is that server already")
        if self._backend in ONE_HOST and not urls_are_local([url]):
            raise ConfigError(
                f"weights go by {self._backend!r}, which reaches this machine only; start the run "
                "with sync.backend: collective or disk to add servers elsewhere"
            )
        await self._check(url)
        name = self._free_name()
        engine = await self._connect(url, name)
        try:
            self._client.add_engine(engine)
        except BaseException:
            await engine.close()
            raise
        self._urls[name] = url
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._join_s):
                while name not in self._client.active():
                    await asyncio.sleep(0.05)
                return f"{name} at {url} joined and serves"
        why = self._client.member(name).why
        return f"{name} at {url} joined, and serves once it has the weights of the others: {why}"

    async def _remove(self, server: str) -> str:
        name = server if server in self._urls else self._named(server)
        if not name:
            known = ", ".join(f"{n} at {url}" for n, url in self._urls.items()) or "none"
            raise ConfigError(f"no server of this run that can leave; there are: {known}")
        # A server that left during a sync would stay paused, or be missed by its broadcast.
        while self._client.paused:
            await asyncio.sleep(LOOK_S)
        if not set(self._client.active()) - {name}:
            raise ConfigError(f"{name} is the last server that serves; add another one first")
        url = self._urls.pop(name)
        try:
            await self._client.remove_engine(name, limit_s=self._leave_s)
        finally:
            self._left(name)
        return f"{name} at {url} has left"

    def _named(self, url: str) -> str:
        """Name of the server with an address; empty if there is none."""
        return next((name for name, known in self._urls.items() if known == url), "")

    def _free_name(self) -> str:
        taken = {*self._client.names(), *self._client.stats(), *self._urls}
        return next(n for i in itertools.count() if (n := f"server-{i}") not in taken)


@contextlib.asynccontextmanager
async def live_servers(
    config: RunConfig,
    client: TokenClient,
    run: Path,
    check: Check,
    *,
    backend: str,
    note: Callable[[str], None],
) -> AsyncIterator[None]:
    """Let servers join and leave a run in this process until the block ends.

    Args:
        config: of the run.
        client: in front of its engines.
        run: its directory.
        check: raises for a server that the run cannot use.
        backend: by which weights reach the engines.
        note: called with each line for the user.
    """
    section = config.serving
    if section.engine == "embedded":
        yield
        return

    async def connect(url: str, name: str) -> Engine:
        return await connect_engine(
            url,
            name=name,
            transport=section.transport,
            # What an earlier run left there has a number of that run, often a larger one.
            start_version=UNKNOWN_VERSION,
            adopt=True,
            max_context_tokens=config.rollout.max_context_tokens,
        )

    servers = LiveServers(
        run,
        client,
        connect,
        check,
        urls=named_urls(section),
        backend=backend,
        note=note,
    )
    async with beside(servers.run()):
        yield


def named_urls(section: ServingSection) -> dict[str, str]:
    """Servers that ran before the run did, by the names of their engines."""
    return {f"server-{index}": url for index, url in enumerate(section.urls)}


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # no port
        good = False
    if not good:
        raise ConfigError(f"{url!r} is not the address of a vLLM server: http://host:port")
