"""What of a vLLM server is asked between `connect` and a sync, without a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


class FakeVllm:
    """A server that holds weights of some version, and nothing else."""

    def __init__(self, version: str) -> None:
        self.version = version
        """Name of its weights."""
        self.url = ""
        """Where it is, once it runs."""
        self.asked: list[str] = []
        """Paths, in order."""
        self._paused = False

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        answer: dict[str, Any] = {}
        match request.path:
            case "/v1/models":
                answer = {"data": [{"id": "policy", "max_model_len": 4096}]}
            case "/weight_info":
                answer = {"weight_version": self.version}
            case "/update_weight_version":
                self.version = (await request.json())["new_version"]
            case "/finish_weight_update":
                self.version = (await request.json())["weight_version"]
            case "/pause" | "/resume":
                self._paused = request.path == "/pause"
            case "/is_paused":
                answer = {"is_paused": self._paused}
            case "/reset_prefix_cache":
                answer = {"success": True}
            case "/metrics":
                return web.Response(text="")
            case _:
                pass
        return web.json_response(answer)


@asynccontextmanager
async def fake_vllm(version: str) -> AsyncIterator[FakeVllm]:
    """A server on a free port."""
    server = FakeVllm(version)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server._answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
