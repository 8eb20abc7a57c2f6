"""The host's end of a program that stays: its output that is not read yet, and its end.

The guest may push `WINDOW` bytes ahead of the reader; each byte read is granted again. So neither
side holds more than that, and a program that floods waits in its own pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno

from agentrl.errors import SandboxError
from agentrl.sandbox import Outcome, Process
from agentrl_sandboxes.guest import wire
from agentrl_sandboxes.host.answers import exit_code, outcome_of
from agentrl_sandboxes.host.channel import Channel

WINDOW = 2**18
"""Bytes of output that may wait on the host's side."""
PIECE = 2**16
"""Bytes of stdin in one frame."""
ANSWER_S = 30.0

_NOTES = {
    wire.OOM: b"\n[killed: more memory than the limit]\n",
    wire.DISK: b"\n[killed: wrote more than the disk limit]\n",
    wire.PROCESSES: b"\n[killed: more processes than the limit]\n",
}


class SessionProcess(Process):
    """A program that a supervisor runs in a session."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ident = 0
        self._buffer = bytearray()
        self._unread = 0
        self._result: tuple[int, int] | None = None
        self._error: SandboxError | None = None
        self._closed = False
        self._news = asyncio.Event()
        # Keeps the pieces of one write together when two tasks write.
        self._writing = asyncio.Lock()

    @property
    def outcome(self) -> Outcome | None:
        """The way in which it ended; see `Process.outcome`."""
        if self._result is None:
            return None
        return outcome_of(self._result[0], exit_code(*self._result))

    async def begin(self, request: dict[str, object]) -> None:
        """Start the program of the session."""
        body = {**request, "credit": WINDOW}
        self._ident, _ = await self._channel.open_stream(wire.START, body, self, timeout_s=ANSWER_S)

    def feed(self, kind: int, body: bytes) -> None:
        """Take what the guest sends; see `Sink`."""
        if kind == wire.OUTPUT:
            self._unread += len(body)
            if self._unread > WINDOW:
                raise OSError(errno.EPROTO, "more output than was allowed")
            if not self._closed:
                self._buffer += body
        else:
            reason, status = wire.DONE.unpack_from(body)[:2]
            self._result = (reason, status)
            self._buffer += _NOTES.get(reason, b"")
        self._news.set()

    def fail(self, error: SandboxError) -> None:
        """The sandbox is gone; see `Sink`."""
        self._error = error
        self._news.set()

    async def write(self, data: bytes) -> None:
        """Give it more stdin; see `Process.write`. Cancelled, a part may have arrived."""
        self._check_open()
        async with self._writing:
            for start in range(0, len(data), PIECE):
                request = {"session": self._ident, "data": bytes(data[start : start + PIECE])}
                try:
                    await self._channel.request(wire.INPUT, request, timeout_s=None)
                except BrokenPipeError:
                    raise
                except OSError as error:
                    raise SandboxError(f"sandbox: {error.strerror}") from error

    async def read(self, *, timeout_s: float) -> bytes:
        """Bytes printed since the last read; see `Process.read`."""
        self._check_open()
        if not self._ready():
            try:
                async with asyncio.timeout(timeout_s):
                    while not self._ready():
                        self._news.clear()
                        await self._news.wait()
            except TimeoutError:
                raise TimeoutError(f"the program printed nothing in {timeout_s:g} s") from None
        data = bytes(self._buffer)
        self._buffer.clear()
        if self._unread:
            size, self._unread = self._unread, 0
            if self._result is None:
                self._channel.notify(wire.GRANT, 0, {"session": self._ident, "size": size})
        if not data and self._error is not None and self._result is None:
            raise self._error
        return data

    async def interrupt(self) -> None:
        """Send SIGINT; see `Process.interrupt`.

        It goes to what the program runs (whatever is below it and does not ignore SIGINT, as a
        shell's background jobs do), and to the program itself if it runs nothing. So a shell
        outlives its commands; an interpreter that waits for a child is reached by a second call.
        """
        self._check_open()
        try:
            await self._channel.request(
                wire.INTERRUPT, {"session": self._ident}, timeout_s=ANSWER_S
            )
        except OSError as error:
            raise SandboxError(f"sandbox: {error.strerror}") from error

    async def close(self) -> int | None:
        """Kill it and all it started; see `Process.close`. In a closed sandbox it is dead already.

        Raises:
            SandboxError: the supervisor does not answer.
        """
        if not self._closed:
            self._closed = True
            self._buffer.clear()
            self._channel.notify(wire.END, self._ident, {})
            self._news.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                while self._result is None and self._error is None:
                    self._news.clear()
                    await self._news.wait()
        if self._result is None:
            if self._error is None:
                raise SandboxError(f"sandbox: a program did not end within {ANSWER_S:g} s")
            return None
        return exit_code(*self._result)

    def _ready(self) -> bool:
        return bool(self._buffer or self._result or self._error or self._closed)

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("sandbox: the program was closed")
        if not self._channel.open and self._result is None:
            raise self._error or SandboxError("sandbox: closed")
