"""Ports inside a sandbox, on the host's side: a guest that cannot be trusted, and a crowd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from agentrl_sandboxes import BACKENDS, PooledBackend
from agentrl_sandboxes.guest import wire
from agentrl_sandboxes.host.channel import Channel
from agentrl_sandboxes.host.ports import GuestPort

from agentrl.errors import SandboxError, SandboxUnavailable
from agentrl.sandbox import SandboxLimits, SandboxSpec
from agentrl.testing.sandbox_check.ports import RecordedConnection, until
from tests.sandboxes.host.test_channel import Peer, linked


class Made(list[RecordedConnection]):
    """Makes handlers that give nothing back, and keeps them."""

    def __call__(self) -> RecordedConnection:
        self.append(RecordedConnection(echo=False))
        return self[-1]


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[GuestPort, Peer, int, Made, Channel]]:
    """A port whose guest is driven by the test, and the id of its listener."""
    channel, peer = await linked()
    made = Made()
    port = GuestPort(channel, made)
    begun = asyncio.create_task(port.begin())
    kind, ident, _ = await peer.take()
    assert kind == wire.LISTEN
    peer.answer(wire.DATA, ident, wire.COUNT.pack(4711))
    # At once: a program may connect before anybody has read the answer.
    peer.answer(wire.CARRIED, ident, wire.EVENT.pack(1, wire.OPENED))
    await begun
    await until(lambda: len(made) == 1)
    try:
        yield port, peer, ident, made, channel
    finally:
        await channel.close("over")
        await peer.close()


def event(number: int, kind: int, data: bytes = b"") -> bytes:
    return wire.EVENT.pack(number, kind) + data


async def test_bytes_are_granted_again_when_the_handler_has_them() -> None:
    # Fails if bytes are granted to a handler that has paused: a flood would fill memory.
    async with scripted() as (port, peer, ident, made, _):
        assert port.port == 4711
        peer.answer(wire.CARRIED, ident, event(1, wire.BYTES, b"first"))
        room = {"connection": 1, "event": wire.ROOM, "data": wire.COUNT.pack(5)}
        assert await peer.take() == (wire.CARRY, ident, room)
        assert made[0].transport is not None
        made[0].transport.pause_reading()
        peer.answer(wire.CARRIED, ident, event(1, wire.BYTES, bytes(2**16)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.take(), 0.1)
        assert made[0].received == 5
        made[0].transport.resume_reading()
        _, _, body = await peer.take()
        assert isinstance(body, dict)
        assert (body["event"], body["data"]) == (wire.ROOM, wire.COUNT.pack(2**16))
        assert made[0].received == 5 + 2**16


async def test_no_more_is_sent_than_the_program_takes() -> None:
    # Fails if the window is not kept: the memory of a supervisor is bounded.
    async with scripted() as (_, peer, ident, made, _):
        transport = made[0].transport
        assert transport is not None
        transport.write(bytes(3 * wire.WINDOW))
        assert not made[0].may_write.is_set()
        size = 0
        while size < wire.WINDOW:
            _, _, body = await peer.take()
            assert isinstance(body, dict)
            size += len(body["data"])
        assert size == wire.WINDOW
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.take(), 0.1)
        peer.answer(wire.CARRIED, ident, event(1, wire.ROOM, wire.COUNT.pack(10)))
        _, _, body = await peer.take()
        assert isinstance(body, dict)
        assert len(body["data"]) == 10


HOSTILE = {
    "more bytes than were allowed": [event(1, wire.BYTES, bytes(wire.WINDOW + 1))],
    "more taken than was sent": [event(1, wire.ROOM, wire.COUNT.pack(1))],
    "a connection that is not there": [event(2, wire.BYTES, b"x")],
    "a number used twice": [event(1, wire.OPENED)],
    "connections without end": [event(n, wire.OPENED) for n in range(2, wire.CONNECTIONS + 2)],
    "no such event": [event(1, 77)],
    "half an event": [b"\0"],
    "no count": [event(1, wire.ROOM, b"\0")],
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_guest_that_breaks_the_rules_loses_its_channel(what: str) -> None:
    async with scripted() as (port, peer, ident, made, channel):
        if what == "more bytes than were allowed":
            assert made[0].transport is not None
            made[0].transport.pause_reading()
        for body in HOSTILE[what]:
            peer.answer(wire.CARRIED, ident, body)
        await until(lambda: not channel.open)
        assert all(one.lost.is_set() for one in made)
        await port.close()
        with pytest.raises(SandboxError):
            await channel.request(wire.READ, {}, timeout_s=120.0)


async def test_without_sockets_of_the_internet_it_says_so() -> None:
    channel, peer = await linked()
    begun = asyncio.create_task(GuestPort(channel, Made()).begin())
    _, ident, _ = await peer.take()
    peer.answer(wire.FAILED, ident, wire.ERROR.pack(97) + b"Address family not supported")
    with pytest.raises(SandboxUnavailable, match="loopback included"):
        await begun
    await channel.close("over")
    await peer.close()


CROWD = """
import os, socket, sys, time
port = int(sys.argv[1])
made = 0
end = time.monotonic() + 4
held = []
while time.monotonic() < end:
    link = socket.socket()
    link.setblocking(False)
    link.connect_ex(("127.0.0.1", port))
    made += 1
    held.append(link)
    if len(held) > 200:
        for old in held:
            try:
                old.send(os.urandom(5000))
            except OSError:
                pass
            old.close()
        held = []
print(made)
"""


async def test_thousands_of_connections_hold_up_nobody(backend_name: str) -> None:
    # Fails if the guest takes connections as fast as they come: each costs the host more than the
    # program, and the event loop of a run is everybody's.
    backend = BACKENDS[backend_name]()
    made = Made()
    try:
        sandbox = await backend.create(SandboxLimits())
        port = await sandbox.listen(made)
        command = ("python3", "-I", "-S", "-c", CROWD, str(port.port))
        crowd = asyncio.create_task(sandbox.exec(command))
        began, computed = time.monotonic(), time.process_time()
        result = await crowd
        share = (time.process_time() - computed) / (time.monotonic() - began)
        assert int(result.stdout or 0) > 400, result
        assert share < 0.5, f"the loop computed for {share:.0%} of the time"
        assert 20 < len(made) < 3000
        assert (await sandbox.exec(("echo", "alive"))).stdout == "alive\n"
    finally:
        await backend.close()


async def test_a_lease_passes_ports_on_and_takes_them_back() -> None:
    made = Made()
    pool = PooledBackend(BACKENDS["process"](), max_open=1)
    try:
        sandbox = await pool.take(SandboxSpec(), SandboxLimits())
        port = await sandbox.listen(made)
        program = f"import socket; socket.create_connection(('127.0.0.1', {port.port})).recv(1)"
        running = asyncio.create_task(sandbox.exec(("python3", "-c", program)))
        await until(lambda: len(made) == 1)
        await sandbox.close()
        await asyncio.gather(running, return_exceptions=True)
        assert made[0].lost.is_set()
        with pytest.raises(SandboxError, match="closed"):
            await sandbox.listen(made)
    finally:
        await pool.close()
