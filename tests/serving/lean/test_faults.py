"""The lean connection against strangers, dead servers and garbage."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentrl.errors import EngineError, EngineRefused
from agentrl.serving.lean import EngineServer, LeanEngine, frames, handshake
from agentrl.serving.lean.frames import FrameKind
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams
from tests.serving.lean.lean_process import lean_process

LIMIT_S = 120.0
SAMPLING = SamplingParams(max_tokens=99)


def scripted(**options: object) -> ScriptedEngine:
    return ScriptedEngine(("hello",), ByteTokenizer(), **options)  # type: ignore[arg-type]


# -- servers that die -------------------------------------------------------------------------


async def test_a_killed_server_fails_the_turn_and_nothing_stays_in_flight() -> None:
    """Fails if the turn waits on, or is called refused although it may have been sampled."""
    with lean_process(delay_s=600) as server:
        client = LeanEngine(server.address, name="lean", secret=server.secret)
        turns = [asyncio.create_task(client.generate([n], SAMPLING, f"s{n}")) for n in range(5)]
        while (await client.health()).in_flight < 5:
            await asyncio.sleep(0.01)
        server.process.kill()
        async with asyncio.timeout(LIMIT_S):
            errors = await asyncio.gather(*turns, return_exceptions=True)
        assert [type(error) for error in errors] == [EngineError] * 5
        health = await client.health()
        assert (health.ready, health.in_flight) == (False, 0)
        with pytest.raises(EngineRefused):
            await client.generate([1], SAMPLING, "s")
        await client.close()


async def test_what_was_never_written_is_refused() -> None:
    """Fails if a request that still waited behind a full socket is not asked of another engine."""
    with lean_process(delay_s=600) as server:
        client = LeanEngine(server.address, name="lean", secret=server.secret)
        await client.connect()
        os.kill(server.process.pid, signal.SIGSTOP)
        big = asyncio.create_task(client.generate([1] * 4_000_000, SAMPLING, "big"))
        await asyncio.sleep(0.1)
        small = asyncio.create_task(client.generate([1], SAMPLING, "small"))
        await asyncio.sleep(0.1)
        server.process.kill()
        async with asyncio.timeout(LIMIT_S):
            errors = await asyncio.gather(big, small, return_exceptions=True)
        assert [type(error) for error in errors] == [EngineError, EngineRefused]
        assert "was not sent" in str(errors[1])
        await client.close()


async def test_a_silent_server_is_dead() -> None:
    """Fails if a server whose machine went away is waited for as long as TCP does."""
    with lean_process(delay_s=0) as server:
        client = LeanEngine(server.address, name="lean", secret=server.secret, dead_after_s=0.4)
        await client.generate([1], SAMPLING, "s")
        os.kill(server.process.pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match="silent") as caught:
            await asyncio.wait_for(client.generate([1], SAMPLING, "s"), LIMIT_S)
        assert type(caught.value) is EngineError
        await client.close()


async def test_a_quiet_connection_lives() -> None:
    """Fails if pings do not count as signs of life."""
    async with EngineServer(scripted(delay_s=1.0)) as server:
        client = LeanEngine(server.address, name="lean", secret=server.secret, dead_after_s=0.3)
        await asyncio.wait_for(client.generate([1], SAMPLING, "s"), LIMIT_S)
        assert client.stats.connections == 1
        await client.close()


async def test_nobody_there_is_refused_and_not_asked_at_once_again() -> None:
    """Fails if every turn of a thousand rollouts dials a server that is down."""
    client = LeanEngine("lean://127.0.0.1:9", name="lean", secret="s")
    with pytest.raises(EngineRefused, match=r"127\.0\.0\.1:9"):
        await client.generate([1], SAMPLING, "s")
    with pytest.raises(EngineRefused, match="next attempt in"):
        await client.generate([1], SAMPLING, "s")
    assert not (await client.health()).ready
    await client.close()


# -- strangers --------------------------------------------------------------------------------


async def test_another_secret_is_turned_away_by_either_side() -> None:
    async with EngineServer(scripted(), secret="right") as server:
        client = LeanEngine(server.address, name="lean", secret="wrong")
        with pytest.raises(EngineRefused, match="secret"):
            await client.generate([1], SAMPLING, "s")
        await client.close()


@asynccontextmanager
async def peer(answer: bytes) -> AsyncIterator[str]:
    """Somebody who answers everything with `answer`; yields the lean address."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"lean://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not the lean protocol"),
        (frames.frame(FrameKind.CHALLENGE, b"agentrl\n\x09" + bytes(48)), "lean protocol 9"),
        (frames.frame(FrameKind.WELCOME, b"{}"), "unexpected welcome"),
        (frames.frame(FrameKind.RESULT, b"x"), "a frame of"),
        (struct.pack("<I", 1 << 30), "no handshake"),
        (struct.pack("<IB", 1 << 30, 20), "not the lean protocol"),
        (b"", "no handshake"),
    ],
)
async def test_a_server_of_another_kind_is_named(answer: bytes, said: str) -> None:
    """Fails if the client waits for ever, or says only that the connection was lost."""
    async with peer(answer) as address:
        client = LeanEngine(address, name="lean", secret="s", connect_timeout_s=0.5)
        with pytest.raises(EngineRefused, match=said):
            await asyncio.wait_for(client.connect(), LIMIT_S)
        await client.close()


class Raw:
    """A client that says what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._splitter = frames.FrameSplitter()

    async def next(self) -> tuple[int, bytes]:
        """The next frame; one is sent at a time here."""
        while True:
            data = await asyncio.wait_for(self.reader.read(1 << 16), LIMIT_S)
            assert data, "the server hung up"
            if found := self._splitter.feed(data):
                return found[0]

    async def rest(self) -> bytes:
        """Until the server hangs up."""
        try:
            return await asyncio.wait_for(self.reader.read(), LIMIT_S)
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def raw(server: EngineServer, *, known: bool) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    stranger = Raw(reader, writer)
    try:
        if known:
            shake = handshake.ClientHandshake(server.secret)
            writer.write(shake.hello())
            kind, challenge = await stranger.next()
            assert kind == FrameKind.CHALLENGE
            writer.write(shake.prove(challenge))
            assert (await stranger.next())[0] == FrameKind.WELCOME
        yield stranger
    finally:
        writer.close()


@pytest.mark.parametrize("known", [False, True])
async def test_garbage_costs_its_sender_the_connection_and_nobody_else(known: bool) -> None:
    """Fails if garbage ends the server, hangs it, or is kept in memory until it makes sense."""
    rng = random.Random(0)
    engine = scripted()
    async with EngineServer(engine) as server:
        client = LeanEngine(server.address, name="lean", secret=server.secret)
        for _ in range(20):
            kind = rng.choice([*FrameKind, 99])
            whole = frames.frame(kind, rng.randbytes(rng.randrange(200)))  # type: ignore[arg-type]
            junk = rng.choice([whole, rng.randbytes(300), b"GET / HTTP/1.1\r\n\r\n"])
            if whole is junk and kind in (FrameKind.PING, FrameKind.CANCEL, FrameKind.END_SESSION):
                junk = frames.frame(FrameKind.GENERATE, b"cut")
            async with raw(server, known=known) as stranger:
                stranger.writer.write(junk)
                if not known or len(junk) > 5:
                    stranger.writer.write_eof()
                await stranger.rest()
        await asyncio.wait_for(client.generate([1], SAMPLING, "s"), LIMIT_S)
        await client.close()


async def test_a_stranger_cannot_make_the_server_wait_for_a_long_frame() -> None:
    """Fails if the limit of known clients holds before the handshake."""
    async with EngineServer(scripted()) as server, raw(server, known=False) as stranger:
        stranger.writer.write(struct.pack("<IB", frames.MAX_HANDSHAKE_BYTES + 1, FrameKind.HELLO))
        assert b"lean protocol" in await stranger.rest()


async def test_a_stranger_cannot_ask_for_anything() -> None:
    """Fails if requests are served before the secret is proved."""
    engine = scripted()
    async with EngineServer(engine) as server, raw(server, known=False) as stranger:
        shake = handshake.ClientHandshake(server.secret)
        stranger.writer.write(shake.hello())
        await stranger.next()
        stranger.writer.write(frames.frame(FrameKind.CONTROL, bytes(8), b'{"op":"close"}'))
        assert b"before the end of the handshake" in await stranger.rest()
        assert (await engine.health()).ready


async def test_a_stranger_who_says_nothing_is_cut_off() -> None:
    """Fails if silent connections pile up."""
    silent = EngineServer(scripted(), handshake_s=0.1)
    async with silent as server, raw(server, known=False) as stranger:
        assert await stranger.rest() == b""


async def test_an_unknown_control_request_names_the_known_ones() -> None:
    async with EngineServer(scripted()) as server, raw(server, known=True) as known:
        known.writer.write(frames.frame(FrameKind.CONTROL, bytes(8), b'{"op":"pauze"}'))
        kind, payload = await known.next()
        assert kind == FrameKind.ERROR
        assert b"did you mean 'pause'" in payload


async def test_a_port_in_use_is_named() -> None:
    async with EngineServer(scripted()) as server:
        other = EngineServer(scripted(), port=server.port)
        with pytest.raises(EngineError, match=f"cannot listen on 127.0.0.1:{server.port}"):
            await other.start()
        await other.close()


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        EngineServer(scripted(), secret="")
