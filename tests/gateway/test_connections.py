"""Connections to the gateway's port: bounded, and closed where no request comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx2
import pytest

from agentrl.gateway import Gateway, app, listen, listening
from agentrl.gateway.connections import bounded, most_connections
from tests.gateway.gateway_fakes import serve

MOST, HEAD_S = 8, 0.3


@asynccontextmanager
async def served(
    monkeypatch: pytest.MonkeyPatch, gateway: Gateway
) -> AsyncIterator[tuple[str, int]]:
    monkeypatch.setattr(listen, "bounded", partial(bounded, head_s=HEAD_S))
    monkeypatch.setattr(listen, "most_connections", lambda: MOST)
    async with listening(gateway) as address:
        host, _, port = address.removeprefix("http://").rpartition(":")
        yield host, int(port)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(120):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


async def test_connections_that_ask_nothing_take_no_files_for_long(
    chat: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if idle connections keep others out, or if each of them is a line of the log."""
    made = serve(chat, ["x"])
    async with served(monkeypatch, made.gateway) as (host, port):
        with caplog.at_level(logging.WARNING):
            idle = [await asyncio.open_connection(host, port) for _ in range(40)]
            idle[0][1].write(b"POST /v1/models HTTP/1.1\r\nhost: localhost\r\nx: ")  # half a head
            assert all([await is_closed(reader) for reader, _ in idle])
        lines = [record for record in caplog.records if "refuses more" in record.message]
        assert len(lines) == 1
        assert not [record for record in caplog.records if record.exc_info]
        url = f"http://{host}:{port}/s/{made.session.secret}/v1"
        async with httpx2.AsyncClient() as http:
            for _ in range(3):
                assert (await http.get(f"{url}/models")).status_code == 200
        for _, writer in idle:
            writer.close()


async def test_an_answer_that_takes_long_is_not_cut(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = serve(chat, ["x", "y"], delay_s=3 * HEAD_S)
    async with served(monkeypatch, made.gateway) as (host, port), httpx2.AsyncClient() as http:
        url = f"http://{host}:{port}/s/{made.session.secret}/v1/chat/completions"
        for stream in (False, True):
            body = {"model": "policy", "stream": stream, "messages": [
                {"role": "user", "content": f"Begin {stream}."}]}  # fmt: skip
            answer = await http.post(url, json=body, timeout=120)
            assert answer.status_code == 200
            assert "content" in answer.text


async def test_a_body_that_does_not_come_is_refused(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = serve(chat, ["x"])
    monkeypatch.setattr(app, "BODY_S", 0.2)
    async with listening(made.gateway) as address:
        host, _, port = address.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        path = f"/s/{made.session.secret}/v1/chat/completions"
        kind = "content-type: application/json\r\ncontent-length: 99"
        writer.write(f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{kind}\r\n\r\n{{".encode())
        async with asyncio.timeout(120):
            head = await reader.readuntil(b"\r\n")
        assert b"408" in head
        writer.close()


def test_half_of_the_files_are_left_for_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in ((256, 128), (2**17, 2**16), (-1, 2**16)):
        monkeypatch.setattr("resource.getrlimit", lambda which, files=files: (files, files))
        assert most_connections() == most
