"""From an address to an engine, and the middleware that offers the lean connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.errors import ConfigError, EngineError, EngineRefused
from agentrl.serving.connect import connect_engine
from agentrl.serving.lean import PROTOCOL, EngineServer, LeanEngine
from agentrl.serving.lean.vllm_app import PATH, SECRET_VARIABLE, LeanMiddleware
from agentrl.serving.lean.vllm_engine import VllmLeanEngine
from agentrl.serving.vllm import VllmEngine
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams


@pytest.fixture(autouse=True)
def no_secret_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)


@pytest.fixture
async def lean_server() -> AsyncIterator[EngineServer]:
    engine = ScriptedEngine(("hello",), ByteTokenizer(), version=3)
    async with EngineServer(engine, secret="s") as server:
        yield server


@asynccontextmanager
async def fake_vllm(offer: dict[str, Any] | None) -> AsyncIterator[str]:
    """What of a vLLM server is asked before the first turn."""
    answers: dict[str, Any] = {
        "/v1/models": {"data": [{"id": "policy", "max_model_len": 100}]},
        "/weight_info": {"weight_version": "default"},
    }
    if offer is not None:
        answers[PATH] = offer

    async def answer(request: web.Request) -> web.Response:
        if request.path not in answers:
            return web.Response(status=404)
        return web.json_response(answers[request.path])

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        yield f"http://127.0.0.1:{server.port}"


def offered(server: EngineServer, **changes: Any) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": server.port, "protocol": PROTOCOL, **changes}


async def test_a_lean_address(lean_server: EngineServer) -> None:
    engine = await connect_engine(lean_server.address, name="e", secret="s")
    assert isinstance(engine, LeanEngine)
    assert (engine.name, engine.version) == ("e", 3)
    await engine.close()


async def test_the_secret_may_come_from_the_environment(
    lean_server: EngineServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "s")
    engine = await connect_engine(lean_server.address, name="e")
    await engine.close()


async def test_auto_takes_lean_where_it_is_offered(lean_server: EngineServer) -> None:
    async with fake_vllm(offered(lean_server, host="0.0.0.0")) as url:
        engine = await connect_engine(url, name="e", secret="s", start_version=2)
        assert isinstance(engine, VllmLeanEngine)
        assert engine.version == 2
        answer = await engine.generate([1], SamplingParams(max_tokens=9), "s")
        assert answer.policy_versions == (3,) * 6
        assert (await engine.health()).ready is False  # the fake has no /health
        await engine.close()


@pytest.mark.parametrize("secret", ["s", None])
async def test_auto_takes_http_where_it_must(secret: str | None) -> None:
    """Fails if a stock server, or a server whose secret is unknown, cannot be used."""
    async with fake_vllm(None) as url:
        engine = await connect_engine(url, name="e", secret=secret)
        assert type(engine) is VllmEngine
        await engine.close()


async def test_lean_must_be_had_if_it_is_asked_for(lean_server: EngineServer) -> None:
    async with fake_vllm(None) as url:
        with pytest.raises(EngineRefused, match="404"):
            await connect_engine(url, name="e", secret="s", transport="lean")
        with pytest.raises(ConfigError, match=SECRET_VARIABLE):
            await connect_engine(url, name="e", transport="lean")
    async with fake_vllm(offered(lean_server, protocol=PROTOCOL + 1)) as url:
        with pytest.raises(
            EngineRefused, match=rf"lean protocol {PROTOCOL + 1}, this end {PROTOCOL}"
        ):
            await connect_engine(url, name="e", secret="s", transport="lean")
    async with fake_vllm({"port": "x"}) as url:
        with pytest.raises(EngineRefused, match="no address"):
            await connect_engine(url, name="e", secret="s", transport="lean")


async def test_http_never_dials_lean(lean_server: EngineServer) -> None:
    async with fake_vllm(offered(lean_server)) as url:
        engine = await connect_engine(url, name="e", secret="s", transport="http")
        assert type(engine) is VllmEngine
        await engine.close()


async def test_wrong_addresses_are_named(lean_server: EngineServer) -> None:
    for address in ("127.0.0.1:80", "ftp://a", "", "lean://a"):
        with pytest.raises(ConfigError, match=f"got {address!r}"):
            await connect_engine(address, name="e", secret="s")
    with pytest.raises(ConfigError, match="needs the secret"):
        await connect_engine(lean_server.address, name="e")
    with pytest.raises(EngineError, match="no connection"):
        await connect_engine("http://127.0.0.1:9", name="e")


# -- the middleware ---------------------------------------------------------------------------


class Application:
    """An ASGI application that has started."""

    def __init__(self) -> None:
        self.app = LeanMiddleware(self._inner)
        self.seen: list[str] = []
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._started = asyncio.Event()

    async def _inner(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope["type"] + scope.get("path", ""))
        if scope["type"] == "lifespan":
            assert (await receive())["type"] == "lifespan.startup"
            await send({"type": "lifespan.startup.complete"})
            assert (await receive())["type"] == "lifespan.shutdown"
            await send({"type": "lifespan.shutdown.complete"})

    async def _sent(self, message: Any) -> None:
        if message["type"] == "lifespan.startup.complete":
            self._started.set()

    async def get(self, path: str) -> tuple[int, Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app({"type": "http", "path": path}, self._messages.get, send)
        return (sent[0]["status"], orjson.loads(sent[1]["body"])) if sent else (0, None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        scope = {"type": "lifespan", "app": SimpleNamespace(state=SimpleNamespace())}
        life = asyncio.create_task(self.app(scope, self._messages.get, self._sent))
        self._messages.put_nowait({"type": "lifespan.startup"})
        await self._started.wait()
        yield
        self._messages.put_nowait({"type": "lifespan.shutdown"})
        await life


async def test_the_middleware_listens_as_long_as_the_application_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if the port is left behind, or other paths do not reach the application."""
    monkeypatch.setenv(SECRET_VARIABLE, "s")
    application = Application()
    assert (await application.get(PATH))[0] == 503
    async with application.running():
        status, body = await application.get(PATH)
        assert status == 200
        assert body["protocol"] == PROTOCOL
        engine = await connect_engine(f"lean://{body['host']}:{body['port']}", name="e", secret="s")
        with pytest.raises(EngineError, match="goes over HTTP"):
            await engine.pause()
        await engine.close()
        await application.get("/health")
    assert application.seen == ["lifespan", "http/health"]
    with pytest.raises(EngineRefused):
        await connect_engine(f"lean://{body['host']}:{body['port']}", name="e", secret="s")


@pytest.mark.parametrize(
    ("environment", "said"),
    [({}, SECRET_VARIABLE), ({SECRET_VARIABLE: "s", "AGENTRL_LEAN_PORT": "x"}, "'x'")],
)
async def test_without_a_listener_the_server_says_why(
    environment: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    application = Application()
    async with application.running():
        status, body = await application.get(PATH)
    assert status == 503
    assert said in body["error"]["message"]
