"""A server whose update was cut short says so to whoever asks, until an update succeeds."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.engine import WeightTicket
from agentrl.errors import EngineError, EngineRefused, SyncError
from agentrl.serving.vllm import VllmEngine
from agentrl.serving.vllm.check import Expected, check_server
from agentrl.serving.vllm.wire import TORN, read_generation
from agentrl.types import SamplingParams

CALLS = ("/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache")


class Server:
    """The control surface of a vLLM server; no tokens."""

    def __init__(self) -> None:
        self.version = "default"
        self.paused = False
        self.fails_at = ""
        self.looks = 0
        """Answers to `/collective_rpc` until what is staged is there."""
        self.calls: list[str] = []
        """Methods that workers were called with."""
        self.read_as: list[str] = []
        """Its version at each call of an update."""

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path
        if path in CALLS:
            self.read_as.append(self.version)
        if path == self.fails_at:
            return web.Response(status=500, text="boom")
        if path == "/collective_rpc":
            self.calls.append((await request.json())["method"])
            self.looks -= 1
        if path == "/pause":
            self.paused = True
        if path == "/resume":
            self.paused = False
        if path in ("/update_weight_version", "/finish_weight_update") and request.can_read_body:
            said = await request.json()
            self.version = said.get("new_version") or said.get("weight_version") or self.version
        return web.json_response(
            {
                "/v1/models": {"data": [{"id": "policy", "max_model_len": 4096}]},
                "/version": {"version": "0.32.0"},
                "/weight_info": {"weight_version": self.version},
                "/is_paused": {"is_paused": self.paused},
                "/reset_prefix_cache": {"success": True},
                "/collective_rpc": {"results": [{"done": True}, {"done": self.looks < 0}]},
            }.get(path, {})
        )


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def url(server: Server) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    async with TestServer(app) as served:
        yield f"http://127.0.0.1:{served.port}"


def ticket(version: int) -> WeightTicket:
    return WeightTicket(backend="shm", version=version, info={}, checksum="")


@pytest.mark.parametrize("call", CALLS)
async def test_every_engine_of_a_torn_server_knows(server: Server, url: str, call: str) -> None:
    """Fails if the server is given a number before the cache of the older weights is empty, or if
    only the object whose update failed knows: another one would resume it."""
    first, other = VllmEngine(url, name="a", start_version=-1), VllmEngine(url, name="b")
    await first.connect()
    await other.connect()
    await first.pause()
    server.fails_at = call
    with pytest.raises(SyncError, match="boom"):
        await first.load_weights(ticket(5))
    assert server.version == TORN
    fresh = VllmEngine(url, name="c", start_version=5, adopt=True)
    for engine in (first, other, fresh):
        assert not (await engine.health()).ready
        assert engine.version == -1
        with pytest.raises(EngineError, match="stays paused until an update succeeds"):
            await engine.resume()
        with pytest.raises(EngineRefused, match=r"torn weights|failed to take version 5"):
            await engine.generate([1], SamplingParams(), "s")
        with pytest.raises(EngineError, match=r"torn weights|failed to take version 5"):
            await engine.adopt_version(5)
    assert server.paused
    (finding,) = [
        found
        for found in await check_server(url, Expected(vocab_size=9, max_context_tokens=9))
        if found.name == "weights"
    ]
    assert "found torn" in finding.detail

    server.fails_at = ""
    await other.load_weights(ticket(5))
    await first.resume()
    assert server.version == "5"
    assert set(server.read_as) == {TORN}
    for engine in (first, other, fresh):
        assert (await engine.health()).ready
        assert engine.version == 5
        await engine.close()


def test_tokens_of_torn_weights_are_no_answer() -> None:
    """Fails if a name that is no number stands for the weights of the start here, too."""
    body = b"""{"choices": [{"token_ids": [1], "finish_reason": "length",
        "logprobs": {"content": [{"token_id": 1, "logprob": -1.0}]},
        "weight_versions": [{"version": "torn", "start": 0, "end": 1}]}], "usage": {}}"""
    with pytest.raises(EngineError, match="torn"):
        read_generation(body, SamplingParams(), start_version=0)


async def test_staging_is_over_when_every_worker_is_done(server: Server, url: str) -> None:
    engine = VllmEngine(url, name="a")
    server.looks = 2
    await engine.stage_weights(ticket(1))
    assert server.calls == ["stage_weights", "staged_weights", "staged_weights"]
    await engine.stage_weights(WeightTicket(backend="nccl", version=2, info={}, checksum=""))
    assert len(server.calls) == 3, "vLLM's own engine stages nothing"
    server.fails_at = "/collective_rpc"
    with pytest.raises(EngineError, match="boom"):
        await engine.stage_weights(ticket(2))
    await engine.close()
