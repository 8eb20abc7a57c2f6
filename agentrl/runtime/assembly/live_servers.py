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
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agentrl.config.fleet import ServingSection
from agentrl.config.plan import EnginePlan
from agentrl.disk.server_requests import (
    RequestAnswer,
    ServerAction,
    ServerRequest,
    answer_request,
    read_requests,
)
from agentrl.engine import Engine
from agentrl.errors import AgentrlError, ConfigError
from agentrl.runtime.assembly.engine_care import beside
from agentrl.runtime.assembly.engines import UNKNOWN_VERSION
from agentrl.runtime.assembly.weight_route import urls_are_local
from agentrl.serving.client import TokenClient
from agentrl.serving.connect import connect_engine
from agentrl.serving.vllm import VllmEngine

if TYPE_CHECKING:
    from agentrl.serving.vllm.pictures import PictureSource

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
        self._answers: dict[Path, RequestAnswer] = {}
        """Of what was done, until the disk has taken them: nothing is done twice."""

    async def run(self) -> None:
        """Answer one request after the other."""
        begun, trouble = dict(self._urls), ""
        try:
            while True:
                try:
                    await self._look()
                    trouble = ""
                except OSError as error:  # a full disk, or a shared one that is away for a while
                    why = error.strerror or repr(error)
                    if why != trouble:
                        logger.warning("requests for servers cannot be answered now: %s", error)
                    trouble = why
                await asyncio.sleep(LOOK_S)
        finally:
            self._say_changes(begun)

    async def _look(self) -> None:
        for request in read_requests(self._run):
            if (answer := self._answers.get(request.path)) is None:
                answer = self._answers[request.path] = await self._answer(request)
                self._note(answer.text)
            answer_request(request, answer)
            del self._answers[request.path]

    def _say_changes(self, begun: dict[str, str]) -> None:
        """Log which changes a run that opens its engines again, for any reason, has forgotten."""
        joined = [f"{n} at {url} joined" for n, url in self._urls.items() - begun.items()]
        left = [f"{n} at {url} left" for n, url in begun.items() - self._urls.items()]
        if joined or left:
            logger.warning(
                "while the run went on, %s; if it goes on, after a rollback, a lost rank or with "
                "--resume, it begins with the servers of its config again: repeat `agentrl "
                "control`, or resume it with other serving.urls",
                ", ".join(sorted(joined) + sorted(left)),
            )

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
        if name := await self._named(url, self._members()):
            raise ConfigError(f"{name} is that server already")
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
        name = server if server in self._urls else await self._named(server, self._urls)
        if not name:
            known = ", ".join(f"{n} at {url}" for n, url in self._urls.items()) or "none"
            raise ConfigError(f"no server of this run that can leave; there are: {known}")
        # A server that left during a sync would stay paused, or be missed by its broadcast.
        while self._client.paused:
            await asyncio.sleep(LOOK_S)
        if self._client.active() == [name]:
            raise ConfigError(f"{name} is the last server that serves; add another one first")
        if self._client.names() == [name]:
            raise ConfigError(f"{name} is the only server; add another one first")
        member = self._client.member(name)
        member.leaves = True
        text = f"{name} at {self._urls.pop(name)} has left"
        try:
            await self._client.remove_engine(name, limit_s=self._leave_s)
        except asyncio.CancelledError:
            await member.close()  # the client has forgotten it, and does not close it
            raise
        except Exception as error:  # recording boundary: of whatever closing it raises
            logger.warning("%s; its connection could not be closed: %r", text, error)
            return f"{text}; its connection could not be closed: {error}"
        finally:
            self._left(name)
        return text

    def _members(self) -> dict[str, str]:
        """Addresses of all servers by name, of those that the run started, too."""
        engines = [self._client.engine(name) for name in self._client.names()]
        return {e.name: e.url for e in engines if isinstance(e, VllmEngine)}

    @staticmethod
    async def _named(url: str, known: dict[str, str]) -> str:
        """Name of the server at an address, however the address is written; empty if none is."""
        places = await _places(url)
        for name, other in known.items():
            if url == other or places & await _places(other):
                return name
        return ""

    def _free_name(self) -> str:
        taken = {*self._client.names(), *self._client.stats(), *self._urls}
        return next(n for i in itertools.count() if (n := f"server-{i}") not in taken)


@contextlib.asynccontextmanager
async def live_servers(
    plan: EnginePlan,
    client: TokenClient,
    run: Path,
    check: Check,
    *,
    backend: str,
    note: Callable[[str], None],
    pictures: PictureSource | None = None,
) -> AsyncIterator[None]:
    """Admit and release servers of a run in this process until the block ends.

    Args:
        plan: of the engines.
        client: in front of its engines.
        run: its directory.
        check: raises for a server that the run cannot use.
        backend: by which weights reach the engines.
        note: called with each line for the user.
        pictures: images of the run, for servers of a model that reads them.
    """
    section = plan.serving
    if section.engine == "embedded":
        yield
        return

    async def connect(url: str, name: str) -> Engine:
        return await connect_engine(
            url,
            name=name,
            # What an earlier run left there has a number of that run, often a larger one.
            start_version=UNKNOWN_VERSION,
            adopt=True,
            max_context_tokens=plan.rollout.max_context_tokens,
            pictures=pictures,
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
    gone = "no server can join or leave any more"
    async with beside({gone: servers.run()}):
        yield


def named_urls(section: ServingSection) -> dict[str, str]:
    """Servers that ran before the run did, by the names of their engines."""
    return {f"server-{index}": url for index, url in enumerate(section.urls)}


async def _places(url: str) -> set[tuple[str, int]]:
    """Every address and port that a URL stands for; empty if it stands for none now."""
    try:
        parts = urlsplit(url)
        if not parts.hostname:  # which would stand for this machine
            return set()
        port = parts.port or (443 if parts.scheme == "https" else 80)
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return set()
    return {(str(address[0]), port) for *_, address in found}


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # no port
        good = False
    if not good:
        raise ConfigError(f"{url!r} is not the address of a vLLM server: http://host:port")
