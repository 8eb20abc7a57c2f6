"""The host's end of a port inside a sandbox: connections as transports of asyncio.

A handler is an `asyncio.Protocol`, as for a server of one's own; nothing in it knows that its
connections come as frames. Nothing that the guest sends is believed: more bytes than were allowed,
or an event of a connection that is not there, end the channel.
"""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from agentrl.errors import SandboxError, SandboxUnavailable
from agentrl.sandbox import MakeProtocol, SandboxPort
from agentrl_sandboxes.guest import wire
from agentrl_sandboxes.host.channel import Channel

PIECE = 2**16
"""Bytes in one frame."""
HIGH, LOW = 2**16, 2**14
"""Bytes that wait to be sent when the protocol is told to pause, and to go on."""
ANSWER_S = 30.0


class GuestPort(SandboxPort):
    """A port that a supervisor listens at."""

    def __init__(self, channel: Channel, make_protocol: MakeProtocol) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self._channel = channel
        self._make_protocol = make_protocol
        self._ident = 0
        self._early: list[tuple[int, bytes]] | None = []
        self._transports: dict[int, GuestTransport] = {}
        self._last = 0
        self._ended = asyncio.Event()

    async def begin(self) -> None:
        """Have the supervisor listen.

        Raises:
            SandboxUnavailable: programs of this sandbox have no sockets of the internet.
            SandboxError: the sandbox failed or is closed.
        """
        try:
            self._ident, answer = await self._channel.open_stream(
                wire.LISTEN, {}, self, timeout_s=ANSWER_S
            )
            (self.port,) = wire.COUNT.unpack(answer)
        except OSError as error:
            reason = f"sandbox: cannot listen inside: {error.strerror}"
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise SandboxUnavailable(
                    f"{reason}; its programs have no sockets of the internet, loopback included "
                    "(as with sandbox.network: none of kubernetes); use another backend"
                ) from error
            raise SandboxError(reason) from error
        except struct.error as error:
            raise SandboxError(f"sandbox: {answer!r} is no port") from error
        # A program may have connected before the answer was read.
        early, self._early = self._early or [], None
        for kind, body in early:
            self.feed(kind, body)

    async def close(self) -> None:
        """Close the port and its connections; see `SandboxPort.close`."""
        if self._ident and not self._ended.is_set():
            self._channel.notify(wire.END, self._ident, {})
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._ended.wait()
            except TimeoutError as error:
                raise SandboxError(
                    f"sandbox: a port was not closed within {ANSWER_S:g} s"
                ) from error

    def feed(self, kind: int, body: bytes) -> None:
        """Take an event of the guest; see `Sink`."""
        if self._early is not None and kind != wire.RESULT:
            self._early.append((kind, body))
            return
        if kind == wire.RESULT:
            self.fail(SandboxError("sandbox: the port was closed"))
            return
        number, event = wire.EVENT.unpack_from(body)
        data = body[wire.EVENT.size :]
        if event == wire.OPENED:
            self._open(number)
            return
        transport = self._transports.get(number)
        if transport is None:
            raise OSError(errno.EPROTO, f"an event of connection {number}, which is not open")
        if event == wire.OVER:
            del self._transports[number]
        transport.take(event, data)

    def fail(self, error: SandboxError) -> None:
        """The sandbox or the port is gone; see `Sink`."""
        self._ended.set()
        transports, self._transports = self._transports, {}
        for transport in transports.values():
            transport.lose(ConnectionResetError(errno.ECONNRESET, str(error)))

    def send(self, number: int, event: int, data: bytes = b"") -> None:
        """Send an event of a connection to the guest."""
        body = {"connection": number, "event": event, "data": data}
        self._channel.notify(wire.CARRY, self._ident, body)

    def _open(self, number: int) -> None:
        if number <= self._last or len(self._transports) >= wire.CONNECTIONS:
            raise OSError(errno.EPROTO, "more connections than were allowed")
        self._last = number
        transport = GuestTransport(self, number)
        self._transports[number] = transport
        transport.open(self._make_protocol)


class GuestTransport(asyncio.Transport):
    """One connection of a program inside, for an `asyncio.Protocol` outside."""

    def __init__(self, port: GuestPort, number: int) -> None:
        super().__init__({"sockname": (port.host, port.port)})
        self._port = port
        self._number = number
        self._protocol: asyncio.BaseProtocol = asyncio.Protocol()
        self._out: deque[memoryview] = deque()
        self._waiting = 0
        self._under_way = 0
        self._high, self._low = HIGH, LOW
        self._told_to_pause = False
        self._in: deque[tuple[int, bytes]] = deque()
        self._unread = 0
        self._paused = False
        self._finishing = False
        self._closing = False
        self._lost = False

    # -- from the guest -----------------------------------------------------------------------

    def open(self, make_protocol: MakeProtocol) -> None:
        """Give the connection its protocol."""

        def begin() -> None:
            self._protocol = make_protocol()
            self._protocol.connection_made(self)

        self._call(begin)

    def take(self, event: int, data: bytes) -> None:
        """Take an event of the guest.

        Raises:
            OSError: the guest does not keep to what it is allowed.
        """
        if event == wire.ROOM:
            (size,) = wire.COUNT.unpack(data)
            self._under_way -= size
            if self._under_way < 0:
                raise OSError(errno.EPROTO, "more bytes taken than were sent")
            self._send_more()
            return
        if event == wire.BYTES:
            self._unread += len(data)
            if self._unread > wire.WINDOW:
                raise OSError(errno.EPROTO, "more bytes of a connection than were allowed")
        elif event == wire.OVER:
            (number,) = wire.COUNT.unpack(data)
            if number:
                # What was still to be read is lost with a connection that broke.
                self.lose(ConnectionResetError(number, os.strerror(number)))
                return
            # Both sides have said all; it does not wait for a protocol that never goes on.
            self._paused = False
        elif event != wire.FINISHED:
            raise OSError(errno.EPROTO, f"there is no event {event}")
        self._in.append((event, data))
        self._deliver()

    def lose(self, error: Exception | None) -> None:
        """End it; no event of it comes any more."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._in.clear()
        self._out.clear()
        self._waiting = 0
        self._call(lambda: self._protocol.connection_lost(error))

    def _deliver(self) -> None:
        """Pass on what has come, unless the protocol has paused."""
        read = 0
        while self._in and not self._lost and not self._paused:
            event, data = self._in.popleft()
            read += len(data) if event == wire.BYTES else 0
            if event == wire.OVER:
                self.lose(None)
            elif self._closing:
                continue
            elif event == wire.BYTES:
                self._call(lambda data=data: self._receiver().data_received(data))
            else:
                self._end_of_input()
        if read and not self._lost:
            self._unread -= read
            self._port.send(self._number, wire.ROOM, wire.COUNT.pack(read))

    def _end_of_input(self) -> None:
        kept: list[Any] = []
        self._call(lambda: kept.append(self._receiver().eof_received()))
        if not (kept and kept[0]):
            self.close()

    def _receiver(self) -> asyncio.Protocol:
        assert isinstance(self._protocol, asyncio.Protocol)
        return self._protocol

    def _call(self, callback: Callable[[], None]) -> None:
        """Call the protocol; its errors are its own connection's."""
        try:
            callback()
        except Exception as error:  # as a loop does it: a handler must not end the channel
            message = "a handler of a connection of a sandbox failed"
            asyncio.get_running_loop().call_exception_handler(
                {"message": message, "exception": error, "transport": self}
            )
            self.abort()

    # -- from the protocol ----------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; see `asyncio.WriteTransport`."""
        if self._closing or self._finishing or not data:
            return
        self._out.append(memoryview(bytes(data)))
        self._waiting += len(data)
        self._send_more()
        if self._waiting > self._high and not self._told_to_pause:
            self._told_to_pause = True
            self._call(self._protocol.pause_writing)

    def _send_more(self) -> None:
        while self._out and self._under_way < wire.WINDOW:
            size = min(PIECE, wire.WINDOW - self._under_way, len(self._out[0]))
            piece, rest = self._out[0][:size], self._out[0][size:]
            if rest:
                self._out[0] = rest
            else:
                self._out.popleft()
            self._waiting -= size
            self._under_way += size
            self._port.send(self._number, wire.BYTES, bytes(piece))
        if self._told_to_pause and self._waiting <= self._low:
            self._told_to_pause = False
            self._call(self._protocol.resume_writing)
        if not self._out and self._finishing and not self._lost:
            self._finishing = False
            self._port.send(self._number, wire.OVER if self._closing else wire.FINISHED)

    def write_eof(self) -> None:
        """Send the end of the stream; see `asyncio.WriteTransport`."""
        if not (self._closing or self._finishing):
            self._finishing = True
            self._send_more()

    def can_write_eof(self) -> bool:
        """Return true: the two directions end on their own."""
        return True

    def close(self) -> None:
        """Close when all is sent; see `asyncio.BaseTransport`."""
        if not self._closing:
            self._closing = self._finishing = True
            self._send_more()
            self._paused = False
            self._deliver()

    def abort(self) -> None:
        """Close at once; see `asyncio.WriteTransport`."""
        if not self._lost:
            self._closing = True
            self._port.send(self._number, wire.ABORT)
            asyncio.get_running_loop().call_soon(self.lose, None)

    def is_closing(self) -> bool:
        """Return true if it is closing or closed."""
        return self._closing

    def pause_reading(self) -> None:
        """Keep what comes from now on; see `asyncio.ReadTransport`."""
        self._paused = not self._closing

    def resume_reading(self) -> None:
        """Go on reading; see `asyncio.ReadTransport`."""
        if self._paused:
            self._paused = False
            asyncio.get_running_loop().call_soon(self._deliver)

    def is_reading(self) -> bool:
        """Return true if what comes is passed on."""
        return not self._paused and not self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass on to another protocol from now on."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol that is passed on to."""
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the bytes at which writers pause and go on; see `asyncio.WriteTransport`."""
        self._high = HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes that wait to be sent."""
        return self._waiting

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Low and high limit of what waits to be sent."""
        return self._low, self._high
