"""Checks of `Sandbox.listen`: programs inside talk to a handler outside, and to nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable

from agentrl.errors import SandboxError
from agentrl.sandbox import Outcome, Sandbox, SandboxBackend, SandboxPort
from agentrl.testing.sandbox_check.check import (
    SOON,
    check,
    expect,
    good,
    opened,
    python,
    refused,
)

MEGABYTE = 2**20
CONNECT = """
import socket, sys, time
def connect(port):
    return socket.create_connection(("127.0.0.1", port))
def read_all(link):
    parts = []
    while part := link.recv(65536):
        parts.append(part)
    return b"".join(parts)
port = %d
"""


class RecordedConnection(asyncio.Protocol):
    """Writes down what happens to one connection, and gives back what it is told."""

    def __init__(self, *, echo: bool = True) -> None:
        self.transport: asyncio.Transport | None = None
        self.received = 0
        self.finished = asyncio.Event()
        self.lost = asyncio.Event()
        self.error: Exception | None = None
        self.may_write = asyncio.Event()
        self.may_write.set()
        self._echo = echo

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the connection."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Count, and give back."""
        self.received += len(data)
        if self._echo and self.transport is not None:
            self.transport.write(data)

    def eof_received(self) -> bool:
        """Finish as the program has finished."""
        self.finished.set()
        if self._echo and self.transport is not None:
            self.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        """Note that the program reads slowly."""
        self.may_write.clear()

    def resume_writing(self) -> None:
        """Note that the program has read."""
        self.may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end and its reason."""
        self.error = exc
        self.lost.set()


class _Handlers:
    """Makes handlers and keeps them."""

    def __init__(self, *, echo: bool = True) -> None:
        self.made: list[RecordedConnection] = []
        self._echo = echo

    def __call__(self) -> RecordedConnection:
        self.made.append(RecordedConnection(echo=self._echo))
        return self.made[-1]

    async def first(self) -> RecordedConnection:
        await until(lambda: bool(self.made))
        return self.made[0]


async def until(true: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(SOON.get()):
        while not true():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def answered(
    backend: SandboxBackend, *, echo: bool = True
) -> AsyncIterator[tuple[Sandbox, SandboxPort, _Handlers]]:
    """A sandbox with a port."""
    handlers = _Handlers(echo=echo)
    async with opened(backend) as sandbox:
        yield sandbox, await sandbox.listen(handlers), handlers


@check(optional="listen")
async def port_carries_bytes_both_ways(backend: SandboxBackend) -> None:
    """Bytes come back as they were sent, small and large, and each direction ends on its own."""
    async with answered(backend) as (sandbox, port, handlers):
        program = (
            CONNECT % port.port
            + """
import hashlib, threading
for data in (b"x", bytes(range(256)) * 8192):
    link = connect(port)
    def send():
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
    thread = threading.Thread(target=send)
    thread.start()
    back = read_all(link)
    thread.join()
    print(len(back), hashlib.sha256(back).hexdigest())
"""
        )
        wanted = [b"x", bytes(range(256)) * 8192]
        lines = [f"{len(data)} {hashlib.sha256(data).hexdigest()}" for data in wanted]
        assert (await good(sandbox, program)).splitlines() == lines
        await until(lambda: all(one.lost.is_set() for one in handlers.made))
        assert [one.error for one in handlers.made] == [None, None], "a natural end is no error"


@check(optional="listen")
async def port_carries_many_connections(backend: SandboxBackend) -> None:
    """Connections do not mix, forty at once and more of them one after the other."""
    async with answered(backend) as (sandbox, port, _):
        program = (
            CONNECT % port.port
            + """
for turn in range(3):
    links = [connect(port) for _ in range(40)]
    for number, link in enumerate(links):
        link.sendall(b"%d " % number * 1000)
    for number, link in enumerate(links):
        link.shutdown(socket.SHUT_WR)
        assert read_all(link) == b"%d " % number * 1000, number
        link.close()
print("all")
"""
        )
        assert await good(sandbox, program) == "all\n"


@check(optional="listen")
async def port_waits_for_slow_readers(backend: SandboxBackend) -> None:
    """A program that does not read holds up its own connection, and no memory is filled by it."""
    async with answered(backend, echo=False) as (sandbox, port, handlers):
        program = (
            CONNECT % port.port
            + """
slow = connect(port)
time.sleep(1)
print(len(read_all(slow)))
"""
        )
        running = asyncio.create_task(good(sandbox, program))
        handler = await handlers.first()
        transport = handler.transport
        assert transport is not None
        sent = 0
        async with asyncio.timeout(SOON.get()):
            while sent < 32 * MEGABYTE:
                if not handler.may_write.is_set():
                    assert transport.get_write_buffer_size() < MEGABYTE
                await handler.may_write.wait()
                transport.write(bytes(65536))
                sent += 65536
                if sent == 16 * MEGABYTE:
                    assert await good(sandbox, "print(1)") == "1\n", "others are held up"
        transport.close()
        assert await running == f"{sent}\n"


@check(optional="listen")
async def port_waits_for_slow_handlers(backend: SandboxBackend) -> None:
    """A handler that pauses holds up the program after a bounded number of bytes."""
    async with answered(backend, echo=False) as (sandbox, port, handlers):
        program = (
            CONNECT % port.port
            + """
link = connect(port)
link.recv(1)
link.sendall(bytes(24 * 2**20))
link.shutdown(socket.SHUT_WR)
print(read_all(link))
"""
        )
        running = asyncio.create_task(good(sandbox, program))
        handler = await handlers.first()
        assert handler.transport is not None
        handler.transport.pause_reading()
        handler.transport.write(b"!")
        await asyncio.sleep(0.5)
        assert handler.received == 0, "bytes came to a handler that had paused"
        assert not running.done()
        handler.transport.resume_reading()
        await asyncio.wait_for(handler.finished.wait(), SOON.get())
        seen = f"{handler.received} bytes of {24 * MEGABYTE} came"
        assert handler.received == 24 * MEGABYTE, seen
        handler.transport.write(b"done")
        handler.transport.close()
        assert await running == "b'done'\n"


@check(optional="listen")
async def port_notices_a_killed_program(backend: SandboxBackend) -> None:
    """A program that is killed in the middle ends its connection, and harms no other."""
    async with answered(backend) as (sandbox, port, handlers):
        program = (
            CONNECT % port.port
            + """
link = connect(port)
link.sendall(b"half of a requ")
link.recv(5)
time.sleep(600)
"""
        )
        running = asyncio.create_task(python(sandbox, program))
        handler = await handlers.first()
        await until(lambda: handler.received == 14)
        running.cancel()
        await asyncio.wait([running])
        await until(lambda: handler.finished.is_set() or handler.lost.is_set())
        again = (
            CONNECT % port.port
            + """
link = connect(port)
link.sendall(b"whole")
link.shutdown(socket.SHUT_WR)
print(read_all(link))
"""
        )
        assert await good(sandbox, again) == "b'whole'\n"


@check(optional="listen")
async def port_outlives_crowds_of_connections(backend: SandboxBackend) -> None:
    """Hundreds of connections that send nothing, never read or break off end no sandbox."""
    async with answered(backend) as (sandbox, port, handlers):
        program = (
            CONNECT % port.port
            + """
import struct
held = []
for number in range(300):
    link = socket.socket()
    link.settimeout(0.2)
    try:
        link.connect(("127.0.0.1", port))
        link.setblocking(False)
        link.send(bytes(200_000))
    except OSError:
        pass
    if number % 3 == 0:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.close()
    held.append(link)
    if len(held) > 40:
        held.pop(0).close()
print("tried")
"""
        )
        # What waits in sockets counts as memory of the program, which may end it.
        tried = await python(sandbox, program, timeout_s=15.0)
        expect(tried, Outcome.OK, Outcome.OOM, Outcome.TIMEOUT)
        await until(
            lambda: all(one.finished.is_set() or one.lost.is_set() for one in handlers.made)
        )
        again = (
            CONNECT % port.port
            + """
link = connect(port)
link.sendall(b"still here")
link.shutdown(socket.SHUT_WR)
print(read_all(link))
"""
        )
        assert await good(sandbox, again) == "b'still here'\n"


@check(optional="listen")
async def port_ends_when_it_is_closed(backend: SandboxBackend) -> None:
    """A closed port refuses programs, and every connection ends with it or with its sandbox."""
    async with answered(backend) as (sandbox, port, handlers):
        program = (
            CONNECT
            + """
link = connect(port)
link.sendall(b"?")
print(link.recv(1), flush=True)
try:
    print(read_all(link))
except ConnectionError:
    print(b"")
"""
        )
        running = asyncio.create_task(good(sandbox, program % port.port))
        handler = await handlers.first()
        await until(lambda: handler.received == 1)
        await port.close()
        await port.close()
        assert handler.lost.is_set(), "a connection outlived its port"
        assert await running == "b'?'\nb''\n"
        result = await python(sandbox, program % port.port)
        assert "ConnectionRefusedError" in result.stderr, result.stderr[-300:]
        other = await sandbox.listen(handlers)
        left = asyncio.create_task(python(sandbox, program % other.port))
        await until(lambda: len(handlers.made) == 2 and handlers.made[1].received == 1)
        await sandbox.close()
        await asyncio.gather(left, return_exceptions=True)
        assert handlers.made[1].lost.is_set(), "a connection outlived its sandbox"
        await other.close()


@check(optional="listen")
async def port_of_a_broken_handler(backend: SandboxBackend) -> None:
    """A handler that raises loses its own connection, and neither port nor sandbox."""

    class FailsOnPurpose(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            raise RuntimeError("a handler that fails on purpose")

    loop = asyncio.get_running_loop()
    reported: list[object] = []
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.append(context.get("exception")))
    try:
        async with opened(backend) as sandbox:
            port = await sandbox.listen(FailsOnPurpose)
            program = (
                CONNECT % port.port
                + """
for _ in range(2):
    link = connect(port)
    link.sendall(b"?")
    try:
        print(read_all(link))
    except ConnectionError:
        print(b"")
"""
            )
            assert await good(sandbox, program) == "b''\nb''\n"
    finally:
        loop.set_exception_handler(before)
    assert len(reported) == 2, "the error was lost"


@check(optional="listen")
async def port_of_a_closed_sandbox(backend: SandboxBackend) -> None:
    """A closed sandbox opens no port."""
    async with opened(backend) as sandbox:
        await (await sandbox.listen(_Handlers())).close()
        await sandbox.close()
        await refused(sandbox.listen(_Handlers()), SandboxError)
