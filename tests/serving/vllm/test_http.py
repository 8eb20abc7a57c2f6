"""What a failed request is taken for, against servers that fail in every way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrl.engine import TURN_CLOCK
from agentrl.errors import EngineError, EngineRefused
from agentrl.serving import TokenClient
from agentrl.serving.member import Member
from agentrl.serving.vllm import VllmEngine
from agentrl.serving.vllm.http import Http, HttpAnswer, accept
from agentrl.serving.vllm.sockets import TRY_AGAIN_S, connection_of_turn, turns_at_once
from agentrl.types import SamplingParams

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def request_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return await reader.readexactly(int(line.split(b":")[1]))
    return b""


def reply(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@asynccontextmanager
async def serving(handle: Handle) -> AsyncIterator[Http]:
    open_now = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now
        open_now += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await handle(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            open_now -= 1

    async with await asyncio.start_server(counted, "127.0.0.1", 0, backlog=500) as server:
        # What is idle while the machine is busy with others is not closed meanwhile.
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        http = Http(address, keep_alive_s=600)
        try:
            yield http
        finally:
            await http.close()
        async with asyncio.timeout(120):
            while open_now:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, EngineRefused),
        (404, EngineRefused),
        (429, EngineRefused),
        (503, EngineRefused),
        (500, EngineError),
        (504, EngineError),
    ],
)
async def test_a_status_says_whether_it_began(status: int, kind: type[EngineError]) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(reply(status, b'{"error": {"message": "no such thing"}}'))
        await writer.drain()

    async with serving(handle) as http:
        answer = await http.send("POST", "/x", b"{}", limit_s=120)
        with pytest.raises(EngineError, match=f"status {status}: no such thing") as caught:
            accept(answer, "a turn")
    assert type(caught.value) is kind


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal"])
async def test_a_connection_that_breaks_is_no_refusal(sent: bytes) -> None:
    """Fails if a request that arrived counts as one that did not, or is sent again."""
    arrived: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await request_of(reader))
        writer.write(sent)
        await writer.drain()

    async with serving(handle) as http:
        with pytest.raises(EngineError, match="the connection broke") as caught:
            await http.send("POST", "/x", b"{}", limit_s=120)
    assert type(caught.value) is EngineError
    assert arrived == [b"{}"]


async def test_no_answer_in_time_is_no_refusal() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(handle) as http:
        with pytest.raises(EngineError, match=r"no answer within 0\.2 s") as caught:
            await http.send("POST", "/x", b"{}", limit_s=0.2)
    assert type(caught.value) is EngineError


async def test_connections_are_kept_and_not_limited() -> None:
    """Fails if hundreds of turns at once wait for each other, or each opens a connection."""
    connections = 0
    waiting: list[asyncio.StreamWriter] = []
    all_here = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while not reader.at_eof():
            await request_of(reader)
            waiting.append(writer)
            if len(waiting) == 300:
                all_here.set()
            await all_here.wait()
            writer.write(reply(200, b"{}"))

    async with serving(handle) as http:
        for _ in range(2):
            await asyncio.gather(*(http.send("POST", "/x", b"{}", limit_s=120) for _ in range(300)))
        assert connections == 300


async def test_a_connection_is_not_used_again_after_a_server_error() -> None:
    """Fails if the next request goes into the connection that uvicorn closes after a 500."""
    served: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        served.append(len(served))
        writer.write(reply(500 if len(served) == 1 else 200, b"{}"))
        await writer.drain()
        await asyncio.sleep(0.01)  # closes a moment later, as uvicorn does

    async with serving(handle) as http:
        assert (await http.send("POST", "/x", b"{}", limit_s=120)).status == 500
        assert (await http.send("POST", "/x", b"{}", limit_s=120)).status == 200


async def test_a_turn_cut_by_a_server_that_shuts_down_is_lost_and_not_an_answer() -> None:
    """Fails if an abort that nobody here asked for ends the rollout: it would be dropped, where
    another server can answer the turn."""
    async with vllm_server("abort") as http:
        engine = VllmEngine(http.url)
        with pytest.raises(EngineError, match="as one that shuts down does") as caught:
            await engine.generate([1, 2], SamplingParams(max_tokens=4), "s")
        assert type(caught.value) is EngineError
        await engine.close()


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("details", [{"cached_tokens": 0}, None])
async def test_a_server_reports_cached_tokens_also_where_it_found_none(
    keeps: bool, details: dict[str, int] | None
) -> None:
    """Fails if a cache that loses every prefix is taken for none, or none for one that does."""
    metrics = f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{keeps}"}} 1.0\n'
    usage = {"prompt_tokens_details": details}
    async with vllm_server("length", metrics=metrics, usage=usage) as http:
        engine = VllmEngine(http.url)
        assert (await engine.generate([1], SamplingParams(max_tokens=1), "s")).cached_tokens == 0
        assert engine.reports_cached is (keeps and details is not None)
        await engine.close()


async def test_a_question_does_not_wait_behind_turns() -> None:
    """Fails if an idle server is taken for stuck because others hold all connections of turns."""
    async with vllm_server("length") as http, contextlib.AsyncExitStack() as held:
        for _ in range(turns_at_once()):
            await held.enter_async_context(connection_of_turn())
        member = Member(VllmEngine(http.url))
        turn = asyncio.create_task(member.generate([1], SamplingParams(max_tokens=1), "s"))
        await member.sample_one(5.0)
        assert not turn.done()
        await held.aclose()
        assert (await turn).ids == (5,)
        await member.close()


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing; what it has open stays."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_shortage_of_descriptors_is_said_once_and_is_no_time_of_turns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fails with a line for every request and try, or with turns that end while they wait here."""

    class Clock:
        holds = 0

        def hold(self) -> None:
            self.holds += 1

        def release(self) -> None:
            self.holds -= 1

    clock = Clock()

    async def turn(http: Http) -> HttpAnswer:
        TURN_CLOCK.set(clock)
        return await http.send("GET", "/weight_info", limit_s=120)

    async with vllm_server("length") as http:
        with no_descriptors():
            turns = [asyncio.create_task(turn(http)) for _ in range(5)]
            await asyncio.sleep(3 * TRY_AGAIN_S)
            assert clock.holds == 5
        assert {answer.status for answer in await asyncio.gather(*turns)} == {200}
    assert clock.holds == 0
    assert sum("no file descriptor" in record.message for record in caplog.records) == 1


async def test_a_shortage_of_descriptors_says_nothing_of_a_server() -> None:
    """Fails if a healthy server is quarantined because this process cannot ask it."""
    async with vllm_server("length") as http:
        engine = VllmEngine(http.url, name="a")
        client = TokenClient([engine])
        with no_descriptors():
            health = await asyncio.wait_for(engine.health(), 120)
            assert (health.ready, health.asked) == (False, False)
            assert not await client._is_down("a", client.member("a"))
        assert client.active() == ["a"]
        assert (await engine.health()).ready
        await client.close()


@asynccontextmanager
async def vllm_server(
    finish_reason: str, *, metrics: str = "", usage: dict[str, Any] | None = None
) -> AsyncIterator[Http]:
    """What `VllmEngine` asks of a server; every turn is one token."""
    choice = {
        "token_ids": [5],
        "finish_reason": finish_reason,
        "weight_versions": [{"version": "3", "start": 0, "end": 1}],
    }
    logprobs = {"content": [{"token_id": 5, "logprob": -1.0}]}
    answers = {
        b"/v1/models": {"data": [{"id": "policy", "max_model_len": 64}]},
        b"/weight_info": {"weight_version": "3"},
        b"/abort_requests": {},
        b"/health": {},
        b"/inference/v1/generate": {
            "choices": [{**choice, "logprobs": logprobs}],
            "usage": usage or {},
        },
    }

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            await request_of(reader)
            path = line.split(b" ")[1]
            body = metrics if path == b"/metrics" else json.dumps(answers[path])
            writer.write(reply(200, body.encode()))
            await writer.drain()

    async with serving(handle) as http:
        yield http
