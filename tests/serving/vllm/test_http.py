"""What a failed request is taken for, against servers that fail in every way."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from agentrl.errors import EngineError, EngineRefused
from agentrl.serving.vllm import VllmEngine
from agentrl.serving.vllm.http import Http, accept
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
        http = Http(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        yield http
        await http.close()
        async with asyncio.timeout(5):
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
        answer = await http.send("POST", "/x", b"{}", limit_s=5)
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
            await http.send("POST", "/x", b"{}", limit_s=5)
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
            await asyncio.gather(*(http.send("POST", "/x", b"{}", limit_s=20) for _ in range(300)))
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
        assert (await http.send("POST", "/x", b"{}", limit_s=5)).status == 500
        assert (await http.send("POST", "/x", b"{}", limit_s=5)).status == 200


async def test_a_turn_cut_by_a_server_that_shuts_down_is_lost_and_not_an_answer() -> None:
    """Fails if an abort that nobody here asked for ends the rollout: it would be dropped, where
    another server can answer the turn."""
    choice = {
        "token_ids": [5],
        "finish_reason": "abort",
        "weight_versions": [{"version": "3", "start": 0, "end": 1}],
    }
    logprobs = {"content": [{"token_id": 5, "logprob": -1.0}]}
    answers = {
        b"/v1/models": {"data": [{"id": "policy", "max_model_len": 64}]},
        b"/weight_info": {"weight_version": "3"},
        b"/abort_requests": {},
        b"/inference/v1/generate": {"choices": [{**choice, "logprobs": logprobs}], "usage": {}},
    }

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            await request_of(reader)
            writer.write(reply(200, json.dumps(answers[line.split(b" ")[1]]).encode()))
            await writer.drain()

    async with serving(handle) as http:
        engine = VllmEngine(http.url)
        with pytest.raises(EngineError, match="as one that shuts down does") as caught:
            await engine.generate([1, 2], SamplingParams(max_tokens=4), "s")
        assert type(caught.value) is EngineError
        await engine.close()
