"""The lean listener inside a stock vLLM API server.

    AGENTRL_LEAN_SECRET=... python -m vllm.entrypoints.openai.api_server ... \\
        --middleware agentrl.serving.lean.vllm_app.LeanMiddleware

`GET /agentrl/lean` says where it listens. It listens on the loopback unless AGENTRL_LEAN_HOST says
otherwise, on a free port unless AGENTRL_LEAN_PORT does. Without the secret, or without a port to
have, the server works over HTTP as if this were not there, and the GET says why. With several API
server processes each one has a listener, and the GET answers with that of the process asked.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from agentrl.errors import EngineError
from agentrl.serving.lean.frames import PROTOCOL
from agentrl.serving.lean.server import EngineServer
from agentrl.serving.lean.vllm_adapter import VllmAdapter

logger = logging.getLogger(__name__)

PATH = "/agentrl/lean"
"""Where the listener's address is asked for."""
SECRET_VARIABLE = "AGENTRL_LEAN_SECRET"
"""Environment variable with the secret of the listener."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class LeanMiddleware:
    """ASGI middleware: listens as long as the application lives."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._server: EngineServer | None = None
        self._trouble = "the application has not started"

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one scope of ASGI."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == PATH:
            await self._send_address(send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, scope: Message, receive: Receive, send: Send) -> None:
        async def receive_here() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._stop()  # before the application takes its engine apart
            return message

        async def send_here(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                await self._start(scope["app"].state)
            await send(message)

        try:
            await self._app(scope, receive_here, send_here)
        finally:
            await self._stop()

    async def _start(self, state: Any) -> None:
        secret = os.environ.get(SECRET_VARIABLE, "")
        host = os.environ.get("AGENTRL_LEAN_HOST", "127.0.0.1")
        port = os.environ.get("AGENTRL_LEAN_PORT", "0")
        if not secret:
            self._trouble = f"{SECRET_VARIABLE} is not set in the environment of the server"
            logger.warning("no lean listener: %s", self._trouble)
            return
        try:
            server = EngineServer(VllmAdapter(state), host=host, port=int(port), secret=secret)
            await server.start()
        except (EngineError, ValueError) as error:
            self._trouble = str(error)
            logger.warning("no lean listener: %s", error)
            return
        self._server = server
        logger.info("lean listener at %s", server.address)

    async def _stop(self) -> None:
        server, self._server, self._trouble = self._server, None, "the server is shutting down"
        if server is not None:
            await server.close()

    async def _send_address(self, send: Send) -> None:
        server = self._server
        if server is None:
            status, body = 503, {"error": {"message": f"no lean listener: {self._trouble}"}}
        else:
            status = 200
            body = {"host": server.host, "port": server.port, "protocol": PROTOCOL}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": orjson.dumps(body)})
