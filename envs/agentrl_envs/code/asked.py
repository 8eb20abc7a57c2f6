"""A program in a sandbox that answers line by line, and of which nothing is believed but its lines.

It may flood, hang, die or write what it likes; all of that ends in bounded time and memory, as an
`AskedProgram.over` that says how.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from enum import StrEnum

from agentrl.errors import SandboxError
from agentrl.sandbox import Process, Sandbox

START_S = 15.0
"""Bounds the start of an interpreter, which takes some 15 ms of a processor."""
_CLOSE_S = 10.0
"""Bounds its end, which takes a second where it has stopped its own leader."""
_BATCH = 1 << 15
"""Bytes sent before answers are read. A pipe holds twice as much, so writing never waits for a
program that waits for its reader."""
_TIMERS = (-signal.SIGPROF, -signal.SIGALRM)
_OOM = b"[killed: more memory than the limit]"


class Over(StrEnum):
    """The way in which a program stopped answering."""

    TIMEOUT = "timeout"
    """It used up its time."""
    OOM = "oom"
    """It used more memory than the limit."""
    DIED = "died"
    """It ended, or wrote a line that is too long."""


class AskedProgram:
    """A running program; `start` makes it, `close` ends it with all it started."""

    over: Over | None = None
    """Set once nothing more can be asked."""

    def __init__(self, process: Process, line_bytes: int) -> None:
        self._process = process
        self._line_bytes = line_bytes
        self._received = bytearray()
        # How much of it holds no end of a line.
        self._scanned = 0
        self._deadline = time.monotonic() + START_S

    @classmethod
    async def start(
        cls, sandbox: Sandbox, python: str, source: str, *, line_bytes: int
    ) -> AskedProgram:
        """Run the source, which has to write "start" before it reads anything.

        Args:
            sandbox: where; nothing of the model may have run there since it was made or wiped, for
                whatever keeps the program from starting is taken for the sandbox's failure.
            python: the interpreter inside it.
            source: the program.
            line_bytes: longest line that is taken.

        Raises:
            SandboxError: the sandbox failed, or the program did not start.
        """
        program = cls(await sandbox.start((python, "-I", "-S", "-c", source)), line_bytes)
        try:
            if await program._line() != b"start":
                said = program._received[-300:].decode("utf-8", "replace")
                raise SandboxError(
                    f"the test harness did not start ({program.over}): {said!r}; expected a Python "
                    "3.8 or newer named by the environment's `python` argument inside the sandbox"
                )
        except BaseException:
            await program.close()
            raise
        return program

    def allow(self, seconds: float) -> None:
        """Everything from now on has to be answered in this time."""
        self._deadline = time.monotonic() + seconds

    async def ask(self, requests: Sequence[bytes]) -> list[bytes | None]:
        """One line for each request; None for those that it did not answer any more.

        Raises:
            SandboxError: the sandbox failed.
        """
        answers: list[bytes | None] = []
        while len(answers) < len(requests):
            batch = [requests[len(answers)]]
            size = len(batch[0])
            for request in requests[len(answers) + 1 :]:
                size += len(request)
                if size > _BATCH:
                    break
                batch.append(request)
            await self._send(b"\n".join(batch) + b"\n")
            answers += [await self._line() for _ in batch]
        return answers

    async def close(self) -> None:
        """End the program, with all it started. Idempotent.

        Raises:
            SandboxError: the sandbox failed.
        """
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._process.close()
        except TimeoutError:
            raise SandboxError(f"sandbox: a program did not end within {_CLOSE_S:g} s") from None

    async def _send(self, data: bytes) -> None:
        if self.over is not None:
            return
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                await self._process.write(data)
        except BrokenPipeError:
            return  # what it still wrote is read before its end is seen
        except TimeoutError:
            self.over = Over.TIMEOUT

    async def _line(self) -> bytes | None:
        """The next line; None if there is none any more."""
        while self.over is None:
            end = self._received.find(b"\n", self._scanned)
            if max(end, self._scanned) > self._line_bytes:
                self.over = Over.DIED
            elif end >= 0:
                line = bytes(self._received[:end])
                del self._received[: end + 1]
                self._scanned = 0
                return line
            else:
                self._scanned = len(self._received)
                if self._scanned <= self._line_bytes:
                    await self._receive()
        return None

    async def _receive(self) -> None:
        try:
            left = self._deadline - time.monotonic()
            data = await self._process.read(timeout_s=max(0.001, left))
        except TimeoutError:
            self.over = Over.TIMEOUT
            return
        self._received += data
        if not data:
            status = await self._process.close()
            if status in _TIMERS:
                self.over = Over.TIMEOUT
            else:
                self.over = Over.OOM if _OOM in self._received else Over.DIED
