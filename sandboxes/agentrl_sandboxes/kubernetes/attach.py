"""The attached stdin and stdout of a pod, as the pair of streams that `Channel` takes.

Attaching opens a web socket whose binary messages begin with the number of their channel: 0 stdin,
1 stdout, 2 stderr, 3 how it ended (an object of kind `Status`); with version 5 of the protocol 255
closes the channel whose number follows. Messages are pulled when `Channel` wants bytes, so a host
that reads slowly holds up the API server and at last the supervisor, and memory stays bounded.

The attach ends with its connection, and because of `stdinOnce` so does the pod's stdin, by which
the supervisor ends: when our process dies, when the API server dies, when the network between does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from agentrl_sandboxes.kubernetes.client import Cluster

if TYPE_CHECKING:
    import aiohttp

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""The newest first; both carry bytes as they are, older ones base64 or no status."""
STDIN, STDOUT, STDERR, STATUS = range(4)
STDERR_KEPT = 4096
"""Bytes of stderr that are kept, the last ones; only a supervisor in trouble writes there."""
CHUNK = 2**16
"""Bytes of a message; servers bound them, some at a megabyte."""
WINDOW = 2**20
"""Bytes that may wait to be sent before `drain` waits."""
CLOSE_S = 2.0
"""How long a server may take to agree to the end."""
HEARTBEAT_S = 30.0
"""Between two pings; half as long is waited for the answer. Proxies drop connections that idle."""


class PodStreams:
    """Both directions of one attach; the source and the sink of a `Channel`."""

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, why: Callable[[], Awaitable[str]]
    ) -> None:
        """Streams over `socket`; once it has ended, `why` is asked what became of the pod.

        `why` raises `EndedOutside` where that is nothing that a program inside can cause.
        """
        self._socket = socket
        self._why = why
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._errors = bytearray()
        self._status = b""
        self._broken = ""
        self._closing = False
        # Set while there is something to send, and while there is room for more.
        self._wanted, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._sender = asyncio.create_task(self._send())

    @property
    def errors(self) -> str:
        """The end of what was written to stderr."""
        return bytes(self._errors).decode("utf-8", "replace")

    async def readexactly(self, n: int, /) -> bytes:
        """The next `n` bytes of stdout.

        Raises:
            ConnectionError: the pod or the connection has ended; says why.
        """
        while len(self._incoming) < n:
            await self._receive()
        data = bytes(memoryview(self._incoming)[:n])
        del self._incoming[:n]
        return data

    async def _receive(self) -> None:
        """Take one message."""
        from aiohttp import WSMsgType

        message = await self._socket.receive()
        if message.type is WSMsgType.BINARY and message.data:
            data = memoryview(message.data)
            channel, data = data[0], data[1:]
            if channel == STDOUT:
                self._incoming += data
            elif channel == STDERR:
                self._errors += data
                del self._errors[:-STDERR_KEPT]
            elif channel == STATUS:
                self._status += data
        elif message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
            self._stop("the connection was lost")
            raise ConnectionError(await self._why() or self._said() or self._broken)

    def _said(self) -> str:
        """Words of the API at the end of the stream; empty if it ended well or unheard."""
        with contextlib.suppress(ValueError, AttributeError):
            status = json.loads(self._status)
            if status.get("status") != "Success":
                return str(status.get("message") or "")
        return ""

    def write(self, data: bytes, /) -> None:
        """Send bytes to stdin, in order, when their turn comes."""
        if not self._broken:
            self._outgoing += data
            self._wanted.set()
            if len(self._outgoing) > WINDOW:
                self._room.clear()

    async def drain(self) -> None:
        """Wait until little is left to send.

        Raises:
            ConnectionError: the connection was lost.
        """
        await self._room.wait()
        if self._broken:
            # The reader may not have seen yet that it has ended.
            why = "" if self._closing else await self._why()
            raise ConnectionError(why or self._broken)

    async def _send(self) -> None:
        import aiohttp

        try:
            while True:
                await self._wanted.wait()
                while self._outgoing:
                    data = bytes(memoryview(self._outgoing)[:CHUNK])
                    del self._outgoing[:CHUNK]
                    await self._socket.send_bytes(bytes((STDIN,)) + data)
                    if len(self._outgoing) <= WINDOW:
                        self._room.set()
                self._wanted.clear()
        except (OSError, aiohttp.ClientError, RuntimeError) as error:
            self._stop(f"the connection was lost: {error}")

    def _stop(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._outgoing.clear()
        self._room.set()

    def close(self) -> None:
        """Stop sending; `end` closes the connection."""
        self._closing = True
        self._stop("closed")

    async def end(self) -> None:
        """Close the connection and with it stdin. Idempotent, never raises."""
        self.close()
        self._sender.cancel()
        await asyncio.wait([self._sender])
        with contextlib.suppress(TimeoutError):
            # A server that is gone says nothing to it.
            async with asyncio.timeout(CLOSE_S):
                await self._socket.close()


async def attach(
    cluster: Cluster, name: str, container: str, why: Callable[[], Awaitable[str]]
) -> PodStreams:
    """Attach to the container of a pod that is running.

    Raises:
        ApiRefusal: the API says no.
        OSError, aiohttp.ClientError: it cannot be reached.
    """
    query = {"container": container, "stdin": "true", "stdout": "true", "stderr": "true"}
    socket = await cluster.websocket(f"pods/{name}/attach", query, PROTOCOLS, HEARTBEAT_S)
    if socket.protocol is None:
        await socket.close()
        raise ConnectionError(f"the API speaks none of {', '.join(PROTOCOLS)}")
    return PodStreams(socket, why)
