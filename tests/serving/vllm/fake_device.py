"""A device with a book of its memory, and vLLM servers on it: what does not fit is refused.

`SleepingServer` answers the calls that vLLM 0.32 has for sleep, pause and weights as vLLM does; it
samples one token a turn, whose id is the version of its weights.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.serving.vllm.sleep import SharedDevice

DEFAULT_VERSION = "default"


class DeviceFull(Exception):
    """An allocation that the device has no room for."""


class DeviceBook:
    """Who holds how much of a device."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.held: dict[tuple[str, str], int] = {}
        self.refused: list[str] = []
        """Every allocation that did not fit."""

    @property
    def free(self) -> int:
        return self.total - sum(self.held.values())

    def take(self, owner: str, what: str, size: int) -> None:
        size = 0 if (owner, what) in self.held else size
        if size > self.free:
            text = f"CUDA out of memory: {owner} tried {size} for {what}, {self.free} are free"
            self.refused.append(f"{text} of {self.held}")
            raise DeviceFull(text)
        if size:
            self.held[owner, what] = size

    def give(self, owner: str, *what: str) -> None:
        for key in list(self.held):
            if key[0] == owner and (not what or key[1] in what):
                del self.held[key]

    def shared(self, log: str = "") -> SharedDevice:
        return SharedDevice(name="fake:0", memory=lambda: (self.free, self.total), log=log)


class SleepingServer:
    """One server process; `start` and `kill` are those of its process."""

    def __init__(self, name: str, book: DeviceBook, *, weights: int, cache: int) -> None:
        self.name, self.book = name, book
        self.sizes = {"weights": weights, "kv_cache": cache}
        self.calls: list[str] = []
        self.before: Callable[[str], Awaitable[None]] | None = None
        """Awaited before each call, with its path."""
        self.answers: dict[str, tuple[int, str]] = {}
        """Status and text instead of the usual, by path."""
        self.started = asyncio.Event()
        """Awaited by `start` once it has its memory."""
        self.started.set()
        self.turn: Callable[[], list[int]] | None = None
        """Ids of the next turn instead of the version."""
        self.log_prob = -1.0
        """Of every token."""
        self._served: TestServer | None = None

    @property
    def url(self) -> str:
        assert self._served is not None
        return f"http://127.0.0.1:{self._served.port}"

    @property
    def running(self) -> bool:
        return self._served is not None

    async def start(self) -> None:
        """Start as vLLM does: all of its memory at once, and the weights of the disk."""
        for what, size in self.sizes.items():
            self.book.take(self.name, what, size)
        await self.started.wait()
        self.version = self.loaded = DEFAULT_VERSION
        self.asleep: set[str] = set()
        self.paused = False
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._served = TestServer(app)
        await self._served.start_server()

    async def kill(self) -> None:
        """As kill -9: connections break, and the driver frees the memory."""
        served, self._served = self._served, None
        if served is not None:
            self.book.give(self.name)
            assert served.runner is not None
            for site in list(served.runner.sites):
                await site.stop()
            server = served.runner.server
            for connection in list(server.connections) if server is not None else ():
                if connection.transport is not None:
                    connection.transport.abort()
            closing = asyncio.create_task(served.close())
            closing.add_done_callback(lambda task: task.exception())
            self._closing = closing

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path_qs
        self.calls.append(path)
        if self.before is not None:
            await self.before(path)
        if path in self.answers:
            status, text = self.answers[path]
            return web.Response(status=status, text=text)
        content = json.loads(await request.read() or b"{}")
        try:
            return web.json_response(self._act(request.path, request.query, content))
        except DeviceFull as error:  # as the API server shows an exception of its engine core
            return web.json_response({"error": {"message": str(error)}}, status=500)

    def _act(self, path: str, query: Any, content: dict[str, Any]) -> dict[str, Any]:
        if path == "/sleep":
            self.paused = True
            if "weights" not in self.asleep:
                self.asleep = {"weights", "kv_cache"}
                self.book.give(self.name)
                if query["level"] == "2":
                    self.loaded = "garbage"
            return {"status": "sleeping", "level": int(query["level"])}
        if path == "/wake_up":
            for tag in query.getall("tags"):
                if tag in self.asleep:
                    self.book.take(self.name, tag, self.sizes[tag])
                    self.asleep.discard(tag)
            self.paused = self.paused and bool(self.asleep)
            return {"status": "sleeping" if self.asleep else "awake", "tags": query.getall("tags")}
        if path == "/is_sleeping":
            return {"is_sleeping": self.paused or bool(self.asleep)}
        if path == "/pause":
            self.paused = True
        if path == "/resume":
            assert not self.asleep, "resumed without memory"
            self.paused = False
        if path == "/update_weights":
            assert "weights" not in self.asleep, "loaded into no memory"
            self.loaded = str(content["update_info"]["ticket"]["version"])
        if path == "/update_weight_version":
            self.version = content["new_version"]
        if path == "/inference/v1/generate":
            return self._sample()
        return {
            "/v1/models": {"data": [{"id": "policy", "max_model_len": 4096}]},
            "/weight_info": {"weight_version": self.version},
            "/is_paused": {"is_paused": self.paused},
            "/reset_prefix_cache": {"success": True},
            "/collective_rpc": {"results": [{"done": True}]},
        }.get(path, {})

    def _sample(self) -> dict[str, Any]:
        assert not self.asleep, "sampled without memory"
        assert self.loaded == self.version, f"sampled from {self.loaded}, called {self.version}"
        ids = [int(self.loaded)] if self.turn is None else self.turn()
        choice = {
            "token_ids": ids,
            "logprobs": {"content": [{"token_id": i, "logprob": self.log_prob} for i in ids]},
            "weight_versions": [{"start": 0, "end": len(ids), "version": self.version}],
            "finish_reason": "length",
        }
        return {"choices": [choice], "usage": {}}
