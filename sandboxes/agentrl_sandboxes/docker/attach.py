"""The attached stdin and stdout of a container, as the pair of streams that `Channel` takes.

The daemon answers an attach request by giving up HTTP on that connection: what we write is the
container's stdin, what we read is its stdout and stderr in Docker's own frames (stream number,
three zero bytes, length). The frames are taken apart as they arrive, without a task in between,
because every command of every sandbox passes here.
"""

from __future__ import annotations

import asyncio
import struct

from agentrl.errors import SandboxError
from agentrl_sandboxes.docker.address import Address

HEAD = struct.Struct(">BxxxL")
STDERR = 2
STDERR_KEPT = 4096
"""Bytes of stderr that are kept, the last ones; only a supervisor in trouble writes there."""
WINDOW = 2**20
"""Bytes that may wait to be read before the daemon is held up."""


class AttachProtocol(asyncio.StreamReaderProtocol):
    """Feeds stdout to a stream reader and keeps the end of stderr."""

    def __init__(self, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self._out = reader
        self._rest = bytearray()
        self._raw = False
        self.errors = bytearray()
        self.accepted: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def data_received(self, data: bytes) -> None:
        """Take what has come: first the answer to the request, then frames."""
        if not self._raw:
            self._rest += data
            head, found, after = bytes(self._rest).partition(b"\r\n\r\n")
            if not found:
                return
            status = head.split(None, 2)[1:2]
            if status not in ([b"101"], [b"200"]):
                said = (head.splitlines()[0] + b" " + after[:300]).decode("utf-8", "replace")
                self._refuse(f"the daemon says: {said.strip()}")
                return
            self._raw = True
            self._rest.clear()
            if not self.accepted.done():
                self.accepted.set_result(None)
            data = after
        if self._rest:
            self._rest += data
            data = bytes(self._rest)
            self._rest.clear()
        at, end = 0, len(data)
        view = memoryview(data)
        while end - at >= HEAD.size:
            stream, size = HEAD.unpack_from(data, at)
            start = at + HEAD.size
            if end - start < size:
                break
            at = start + size
            if stream == STDERR:
                self.errors += view[start:at]
                del self.errors[:-STDERR_KEPT]
            else:
                self._out.feed_data(view[start:at])
        self._rest += view[at:]

    def eof_received(self) -> bool | None:
        """Fail the attach request: the container has ended, or the daemon has."""
        self._refuse("the daemon closed the connection")
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the attach request and record that the connection is gone."""
        self._refuse(f"the connection was lost: {exc or 'closed'}")
        if not self.ended.done():
            self.ended.set_result(None)
        super().connection_lost(exc)

    def _refuse(self, reason: str) -> None:
        if not self.accepted.done():
            self.accepted.set_exception(SandboxError(f"docker attach: {reason}"))


class Attached:
    """The streams of one container."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: AttachProtocol
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._protocol = protocol

    @property
    def errors(self) -> str:
        """The end of what was written to stderr."""
        return bytes(self._protocol.errors).decode("utf-8", "replace")

    async def close(self) -> None:
        """End of file for the container; waits until the connection is gone."""
        self.writer.close()
        await self._protocol.ended


async def attach(address: Address, container: str, version: str) -> Attached:
    """Attach to a container that has not started yet.

    Args:
        address: of the daemon.
        container: id.
        version: of the API, as `v1.41`.

    Raises:
        SandboxError: the daemon refused.
        OSError: it cannot be reached.
    """
    request = (
        f"POST /{version}/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1 "
        "HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        "Content-Length: 0\r\n\r\n"
    )
    return await hijack(address, request.encode("ascii"))


async def hijack(address: Address, request: bytes) -> Attached:
    """Send a request whose answer turns the connection into raw streams."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=WINDOW, loop=loop)
    protocol = AttachProtocol(reader, loop)
    if address.socket_path:
        transport, _ = await loop.create_unix_connection(lambda: protocol, address.socket_path)
    else:
        host, port = address.host_port
        transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=address.tls())
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    try:
        writer.write(request)
        await protocol.accepted
    except BaseException:
        writer.close()
        # No other code reads its outcome.
        protocol.accepted.cancel()
        raise
    return Attached(reader, writer, protocol)
