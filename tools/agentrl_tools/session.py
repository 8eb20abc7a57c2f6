"""An interpreter that stays: one piece of source after another, each with its output and status.

Output and the word that it is over come through one stream, so the word must be one that no
program prints. It holds a number drawn anew for each piece, which the interpreter reads only after
the piece has run: while it runs, the number is in no variable, argument or environment.

A piece that runs too long or prints too much is interrupted as by Ctrl-C, twice; an interpreter
that does not come back from that is ended, and the next piece starts a new one.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agentrl.errors import SandboxError
from agentrl.sandbox import Process, Sandbox

START_S = 20.0
"""An interpreter starts in 5 to 50 ms; this bounds one on a machine that is very busy."""
INTERRUPT_S = 0.75
"""What an interrupt is given to work."""
INTERRUPTS = 2
"""The first may reach a child only, and the interpreter the next."""
FLOOD = 16
"""Output beyond this many times what is kept is a flood, as for `Sandbox.exec`."""
_MARK_BYTES = 64
"""No marker is longer."""


class Ending(StrEnum):
    """The way a piece of source ended."""

    DONE = "done"
    """The program ended by itself."""
    TIMEOUT = "timeout"
    """Stopped at its limit."""
    FLOOD = "flood"
    """Stopped because it printed too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The output of one piece of source, and its ending."""

    text: str
    """What was printed, decoded; head and tail with a marker where the middle was."""
    ending: Ending
    """Ending of the source."""
    status: int | None
    """Status from the interpreter, 0 for success; None if it gave none."""
    lost: bool
    """Whether the interpreter is gone, with all it knew."""
    truncated: bool
    """Whether output is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The command that starts an interpreter, and the form in which it takes source."""

    name: str
    """Name in messages."""
    command: Sequence[str]
    """Starts it; it reads pieces of source from its stdin and runs them."""
    frame: Callable[[bytes], bytes]
    """A piece of source as it goes over; what is left of stdin is the number, ended by NUL."""


class ToolSession:
    """At most one process of one interpreter; started on first use, and again when it was lost."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._process: Process | None = None
        self._rest = b""
        # A piece was begun and not seen to its end: the stream is out of step.
        self._torn = False
        # Keeps pieces apart: a model may make several calls in one turn.
        self._one = asyncio.Lock()

    async def run(self, source: str, sandbox: Sandbox, *, timeout_s: float) -> Reply:
        """Run a piece of source to its end.

        Args:
            source: without NUL characters.
            sandbox: where; the same for every call.
            timeout_s: wall-clock limit in seconds.

        Raises:
            SandboxError: the sandbox failed, or there is no such interpreter in it.
        """
        async with self._one:
            if self._torn:
                await self.close()
            process = self._process or await self._start(sandbox)
            return await self._run(process, source.encode(), timeout_s, sandbox.limits.output_bytes)

    async def close(self) -> int | None:
        """End the interpreter and everything it runs.

        Returns:
            Its exit status if it had ended by itself.
        """
        process, self._process = self._process, None
        self._rest, self._torn = b"", False
        return await process.close() if process is not None else None

    async def _start(self, sandbox: Sandbox) -> Process:
        self._process = process = await sandbox.start(self._interpreter.command)
        hello = await self._run(process, b"", START_S, 2**12)
        if hello.lost or hello.status != 0:
            raise SandboxError(
                f"{self._interpreter.name} cannot be run in the sandbox: {hello.text[-200:]!r}; "
                "the image of the sandbox must hold it"
            )
        return process

    async def _run(self, process: Process, source: bytes, timeout_s: float, keep: int) -> Reply:
        number = secrets.token_hex(16).encode()
        output = _Output(number, keep)
        self._torn = True
        ending = Ending.DONE
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await process.write(self._interpreter.frame(source) + number + b"\0")
                output.add(self._rest)
                await _read(process, output, most=FLOOD * keep)
        except TimeoutError:
            if not limit.expired():
                raise
            ending = Ending.TIMEOUT
        except BrokenPipeError:
            output.ended = True
        if ending is Ending.DONE and not output.over:
            ending = Ending.FLOOD
        for _ in range(INTERRUPTS):
            if not output.over:
                await process.interrupt()
                await _drain(process, output)
        lost = output.status is None
        status = await self.close() if lost else output.status
        self._rest, self._torn = (b"" if lost else output.rest), False
        return Reply(
            text=output.text(),
            ending=ending,
            status=status,
            lost=lost,
            truncated=output.left_out > 0,
        )


async def _read(process: Process, output: _Output, *, most: int) -> None:
    """Read until the piece is over or has printed `most` bytes. The caller bounds the time."""
    while not output.over and output.size <= most:
        output.add(await process.read(timeout_s=3600), end=True)


async def _drain(process: Process, output: _Output) -> None:
    """Read what follows an interrupt, for as long as it is given to work."""
    try:
        async with asyncio.timeout(INTERRUPT_S):
            while not output.over:
                output.add(await process.read(timeout_s=INTERRUPT_S), end=True)
    except TimeoutError:
        pass


class _Output:
    """The output of a piece until its marker, shortened as it comes."""

    def __init__(self, number: bytes, keep: int) -> None:
        self.size = 0
        """Bytes printed."""
        self.left_out = 0
        """Bytes of them that are not kept."""
        self.status: int | None = None
        """Exit status in the marker."""
        self.rest = b""
        """What came after the marker: background jobs print between pieces."""
        self.ended = False
        """Whether the interpreter is gone."""
        self._marker = re.compile(b"\x1e" + number + rb" (-?\d{1,5})\x1e")
        self._half = keep // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._last = b""

    @property
    def over(self) -> bool:
        """True if nothing more of the piece can come."""
        return self.ended or self.status is not None

    def add(self, data: bytes, *, end: bool = False) -> None:
        """Take what was read; with `end`, nothing means that the interpreter is gone."""
        if end and not data:
            self.ended = True
        found = self._last + data
        if match := self._marker.search(found):
            self.status = int(match[1])
            self._keep(found[: match.start()])
            self.rest, self._last = found[match.end() :], b""
            return
        # The marker may come in two parts.
        split = len(found) if self.ended else max(0, len(found) - _MARK_BYTES)
        self._keep(found[:split])
        self._last = found[split:]

    def text(self) -> str:
        """The printed text, shortened."""
        self._keep(self._last)
        self._last = b""
        head, tail = (bytes(part).decode("utf-8", "replace") for part in (self._head, self._tail))
        if self.left_out:
            return f"{head}\n[{self.left_out} bytes left out]\n{tail}"
        return bytes(self._head + self._tail).decode("utf-8", "replace")

    def _keep(self, data: bytes) -> None:
        self.size += len(data)
        room = max(0, self._half - len(self._head))
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._half:
            self._drop_middle()

    def _drop_middle(self) -> None:
        drop = len(self._tail) - self._half
        del self._tail[:drop]
        self.left_out += drop
