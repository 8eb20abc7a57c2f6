"""A real HTTP server that answers as a test scripts it, and raw sockets that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Reply = str | int | dict[str, Any] | Callable[[dict[str, Any]], Any] | web.Response


@dataclass
class ScriptedServer:
    """Answers requests with `replies` in order, then with `always`.

    A text is the content of a message, a number a status, a mapping the JSON of a response, a
    function makes any of these from the request.
    """

    always: Reply = "fine"
    replies: list[Reply] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of requests."""
    headers: list[dict[str, str]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    delay_s: float = 0.0
    url: str = ""

    @property
    def users(self) -> list[str]:
        """The last message of every request."""
        return [body["messages"][-1]["content"] for body in self.asked]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self.headers.append(dict(request.headers))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.delay_s)
            reply = self.replies.pop(0) if self.replies else self.always
            if callable(reply):
                reply = reply(body)
            return _response(reply, anthropic=request.path.endswith("/messages"))
        finally:
            self.at_once -= 1


def _response(reply: Any, *, anthropic: bool) -> web.StreamResponse:
    if isinstance(reply, web.Response):
        return reply
    if isinstance(reply, int):
        return web.Response(status=reply, text="busy")
    if isinstance(reply, dict):
        return web.json_response(reply)
    if anthropic:
        used = {"input_tokens": 10, "output_tokens": 3, "cache_read_input_tokens": 90}
        return web.json_response({"content": [{"type": "text", "text": reply}], "usage": used})
    message = {"role": "assistant", "content": reply}
    used = {"prompt_tokens": 100, "completion_tokens": 3}
    return web.json_response({"choices": [{"message": message}], "usage": used})


@asynccontextmanager
async def scripted_server(*replies: Reply, always: Reply = "fine") -> AsyncIterator[ScriptedServer]:
    """Serve until the block ends."""
    served = ScriptedServer(always=always, replies=list(replies))
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", served._serve)
    app.router.add_post("/v1/messages", served._serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield served
    finally:
        await runner.cleanup()


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(talk: Talk) -> AsyncIterator[str]:
    """Give every connection to `talk` after the head of its request has come."""
    running: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            running.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
