"""`EngineServer`: any engine, for other processes.

    listen --connection--> handshake --proof--> open --lost--> turns cancelled, sessions ended

`served` is one connection.
"""

from __future__ import annotations

import asyncio
import secrets
from types import TracebackType
from typing import Self

from agentrl.engine import Engine
from agentrl.errors import EngineError
from agentrl.serving.lean.prefixes import SERVER_TOKENS
from agentrl.serving.lean.served import ServedConnection

CLOSE_S = 10.0
"""Seconds for what is in flight to end when the server closes."""


class EngineServer:
    """Serves one engine; the engine itself belongs to the caller.

    Example:
        >>> async with EngineServer(engine) as server:
        ...     print(server.address, server.secret)
    """

    def __init__(
        self,
        engine: Engine,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        secret: str | None = None,
        max_session_tokens: int = SERVER_TOKENS,
        handshake_s: float = 10.0,
    ) -> None:
        """Take the engine; `start` listens.

        Args:
            engine: is only asked, never closed, unless a client asks for that.
            host: to listen on; the default can be reached from this machine only.
            port: 0 takes a free one.
            secret: clients must know it; None makes one.
            max_session_tokens: most ids held for each connection; sessions beyond it are sent in
                full again.
            handshake_s: seconds a stranger has to show that it knows the secret.

        Raises:
            ValueError: an empty secret.
        """
        if secret == "":
            raise ValueError("the secret must not be empty; leave it out to have one made")
        self._engine = engine
        self.secret = secrets.token_hex(16) if secret is None else secret
        """Shared secret of server and clients."""
        self._max_session_tokens = max_session_tokens
        self._handshake_s = handshake_s
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: set[ServedConnection] = set()

    @property
    def host(self) -> str:
        """Host that the server listens on."""
        return self._host

    @property
    def port(self) -> int:
        """Port that the server listens on; known once started."""
        return self._port

    @property
    def address(self) -> str:
        """Address that `LeanEngine` connects to."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"lean://{host}:{self._port}"

    async def start(self) -> None:
        """Begin to listen for clients.

        Raises:
            EngineError: the address cannot be had.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._connection, self._host, self._port, backlog=1024
            )
        except OSError as error:
            raise EngineError(
                f"cannot listen on {self._host}:{self._port}: {error}; choose another port, or 0 "
                "for a free one"
            ) from error
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Hang up everywhere; turns are cancelled. Idempotent."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for connection in tuple(self._connections):
            connection.hang_up()
        await asyncio.sleep(0)  # the event loop notifies the connections
        tasks = [task for connection in self._connections for task in connection.tasks]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        async with asyncio.timeout(CLOSE_S):
            await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _connection(self) -> ServedConnection:
        return ServedConnection(
            self._engine,
            secret=self.secret,
            max_session_tokens=self._max_session_tokens,
            handshake_s=self._handshake_s,
            connections=self._connections,
        )
